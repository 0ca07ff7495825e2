import sqlite3
from pathlib import Path
from typing import Any

import pytest

from orchestrator import state as state_module
from orchestrator.state import REQUEST_RECORD_SECONDS, State, Transaction
from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import CancelTournamentRequest


def count_events(transaction: Transaction) -> int:
    return int(transaction.execute("SELECT count(*) FROM events")[0][0])


def record(transaction: Transaction, message: str = "hello") -> None:
    transaction.record("greeting", message, tournament_id="t")


async def test_what_was_committed_is_there_after_reopening(tmp_path: Path, clock: Any) -> None:
    first = await State.open(tmp_path / "o.sqlite", clock)
    await first.transact(record)
    await first.close()
    second = await State.open(tmp_path / "o.sqlite", clock)
    assert await second.transact(count_events) == 1
    await second.close()


async def test_a_change_that_raises_changes_nothing(state: State) -> None:
    def change(transaction: Transaction) -> None:
        record(transaction)
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        await state.transact(change)
    assert await state.transact(count_events) == 0


async def test_a_second_instance_is_refused_with_one_line(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "LOCK_WAIT_SECONDS", 0.05)
    first = await State.open(tmp_path / "o.sqlite", clock)
    with pytest.raises(FailedPrecondition, match=r"o\.sqlite: another orchestrator has it open"):
        await State.open(tmp_path / "o.sqlite", clock)
    await first.close()
    await (await State.open(tmp_path / "o.sqlite", clock)).close()


async def test_a_database_of_another_program_is_refused(tmp_path: Path, clock: Any) -> None:
    foreign = sqlite3.connect(tmp_path / "o.sqlite")
    foreign.execute("CREATE TABLE candidates (x)")
    foreign.commit()
    foreign.close()
    with pytest.raises(FailedPrecondition, match="is not an orchestrator's"):
        await State.open(tmp_path / "o.sqlite", clock)


async def test_a_database_of_another_version_is_refused(tmp_path: Path, clock: Any) -> None:
    await (await State.open(tmp_path / "o.sqlite", clock)).close()
    other = sqlite3.connect(tmp_path / "o.sqlite")
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FailedPrecondition, match="layout 99, this one reads 1"):
        await State.open(tmp_path / "o.sqlite", clock)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "o.sqlite").write_text("this is a letter, not a database. " * 100)
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        await State.open(tmp_path / "o.sqlite", clock)


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="its folder cannot be made"):
        await State.open(tmp_path / "file" / "o.sqlite", clock)


class Once:
    """A request that is made again and again."""

    def __init__(self, state: State) -> None:
        self.state, self.done = state, 0

    async def ask(self, request_id: str = "r", tournament_id: str = "t") -> str:
        request = CancelTournamentRequest(request_id=request_id, tournament_id=tournament_id)

        def act() -> str:
            self.done += 1
            return f"answer {self.done}"

        return await self.state.transact(lambda transaction: transaction.once("Cancel", request_id, request, act))


async def test_a_repeated_request_is_done_once_and_answered_alike(state: State) -> None:
    once = Once(state)
    assert [await once.ask(), await once.ask()] == ["answer 1", "answer 1"]
    assert await once.ask("another") == "answer 2"


async def test_another_request_under_a_used_id_is_refused(state: State) -> None:
    once = Once(state)
    await once.ask()
    with pytest.raises(AlreadyExists, match="'r' was used for another request"):
        await once.ask(tournament_id="u")


async def test_a_request_without_an_id_is_refused(state: State) -> None:
    with pytest.raises(InvalidArgument, match="request_id is empty"):
        await Once(state).ask("")


async def test_a_request_is_forgotten_after_a_day(state: State, clock: Any) -> None:
    once = Once(state)
    await once.ask()
    clock.now += REQUEST_RECORD_SECONDS + 1
    assert await once.ask() == "answer 2"


async def test_a_request_that_failed_may_be_repeated(state: State) -> None:
    request = CancelTournamentRequest(request_id="r")

    def fail() -> str:
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        await state.transact(lambda transaction: transaction.once("Cancel", "r", request, fail))
    assert await state.transact(lambda transaction: transaction.once("Cancel", "r", request, lambda: "yes")) == "yes"
