import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from orchestrator.state.database import REQUEST_RECORD_SECONDS, StateDatabase, Transaction
from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import CancelTournamentRequest


def count_events(transaction: Transaction) -> int:
    return int(transaction.execute("SELECT count(*) FROM events")[0][0])


def record(transaction: Transaction, message: str = "hello") -> None:
    transaction.record_event("greeting", message, tournament_id="t")


async def test_events_are_stored_with_their_change_and_logged_once_they_are_durable(state: StateDatabase) -> None:
    def fail(transaction: Transaction) -> None:
        record(transaction, "never")
        raise FailedPrecondition("no")

    with capture_logs() as lines:
        await state.transact(record)
        with pytest.raises(FailedPrecondition):
            await state.transact(fail)
    assert await state.transact(count_events) == 1
    assert lines == [{"event": "hello", "kind": "greeting", "tournament_id": "t", "log_level": "info"}]


class Once:
    """A request that is repeated."""

    def __init__(self, state: StateDatabase) -> None:
        self.state, self.done = state, 0

    async def ask(self, request_id: str = "r", tournament_id: str = "t") -> str:
        request = CancelTournamentRequest(request_id=request_id, tournament_id=tournament_id)

        def act() -> str:
            self.done += 1
            return f"answer {self.done}"

        return await self.state.transact(lambda transaction: transaction.run_once("Cancel", request_id, request, act))


async def test_a_repeated_request_is_executed_once_and_answered_identically(state: StateDatabase) -> None:
    once = Once(state)
    assert [await once.ask(), await once.ask()] == ["answer 1", "answer 1"]
    assert await once.ask("another") == "answer 2"


async def test_another_request_with_a_used_id_is_rejected(state: StateDatabase) -> None:
    once = Once(state)
    await once.ask()
    with pytest.raises(AlreadyExists, match="'r' was used for another request"):
        await once.ask(tournament_id="u")


async def test_a_request_without_an_id_is_rejected(state: StateDatabase) -> None:
    with pytest.raises(InvalidArgument, match="request_id is empty"):
        await Once(state).ask("")


async def test_a_request_is_executed_again_after_a_day(state: StateDatabase, clock: Any) -> None:
    once = Once(state)
    await once.ask()
    clock.now += REQUEST_RECORD_SECONDS + 1
    assert await once.ask() == "answer 2"


async def test_a_request_that_failed_may_be_repeated(state: StateDatabase) -> None:
    request = CancelTournamentRequest(request_id="r")

    def fail() -> str:
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        await state.transact(lambda transaction: transaction.run_once("Cancel", "r", request, fail))
    answer = await state.transact(lambda transaction: transaction.run_once("Cancel", "r", request, lambda: "yes"))
    assert answer == "yes"


# --- reporting saved records -------------------------------------------------------------------------------------


def save(transaction: Transaction, name: str) -> None:
    transaction.saved.append(name)


async def test_saved_records_are_reported_in_order_before_the_caller_continues(state: StateDatabase) -> None:
    reported: list[str] = []
    state.on_saved(reported.extend)

    async def save_one(name: str) -> list[str]:
        await state.transact(save, name)
        return list(reported)

    answers = await asyncio.gather(*map(save_one, "abc"))
    assert reported == ["a", "b", "c"]
    assert all(name in answer for name, answer in zip("abc", answers, strict=True))


async def test_records_of_a_failed_transaction_are_not_reported(state: StateDatabase) -> None:
    reported: list[str] = []
    state.on_saved(reported.extend)

    def fail(transaction: Transaction) -> None:
        save(transaction, "never")
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        await state.transact(fail)
    await state.transact(save, "a")
    assert reported == ["a"]


async def cancel_during(state: StateDatabase, change: Callable[[Transaction], object]) -> None:
    """Cancels the caller of a change while it is made, and waits until the change is saved."""
    began, proceed = threading.Event(), threading.Event()

    def slow(transaction: Transaction) -> None:
        began.set()
        proceed.wait(10)
        change(transaction)

    caller = asyncio.create_task(state.transact(slow))
    await asyncio.to_thread(began.wait, 10)
    caller.cancel()
    await asyncio.wait([caller])
    proceed.set()
    await state.transact(count_events)
    assert caller.cancelled()


async def test_records_of_a_cancelled_caller_are_reported(state: StateDatabase) -> None:
    reported: list[str] = []
    state.on_saved(reported.extend)
    await cancel_during(state, lambda transaction: save(transaction, "slow"))
    assert reported == ["slow"]


async def test_events_of_a_cancelled_caller_are_logged_and_passed_on(state: StateDatabase) -> None:
    passed: list[str] = []
    state.on_event(lambda kind, message, ids: passed.append(message))
    with capture_logs(processors=[merge_contextvars]) as lines, bound_contextvars(caller="pod"):
        await cancel_during(state, lambda transaction: record(transaction, "slow"))
    assert passed == ["slow"]
    assert [(line["event"], line["caller"]) for line in lines] == [("slow", "pod")]
