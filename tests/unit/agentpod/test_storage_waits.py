import asyncio
from collections.abc import Callable

import pytest

from agentpod import storage_waits
from agentpod.learner.ending import EXIT_STORAGE_UNREACHABLE, ending_of_error
from agentpod.storage_waits import StorageUnreachable, StorageWaits
from podrace.errors import DeadlineExceeded, FailedPrecondition, PodraceError, ResourceExhausted, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

FULL = ResourceExhausted("the disk of the store is full")


class Storage:
    """Fails with these errors, one after the other, and then succeeds."""

    def __init__(self, *errors: PodraceError, on_call: Callable[[], None] = lambda: None) -> None:
        self.errors, self.calls, self._on_call = list(errors), 0, on_call

    async def store(self) -> str:
        self.calls += 1
        self._on_call()
        if self.errors:
            raise self.errors.pop(0)
        return "stored"


@pytest.fixture
async def stop() -> "asyncio.Future[str]":
    return asyncio.get_running_loop().create_future()


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each wait, which ends at once."""
    seconds: list[float] = []

    async def wait(stop: "asyncio.Future[str]", longest_seconds: float) -> None:
        seconds.append(longest_seconds)

    monkeypatch.setattr(storage_waits, "wait_at_most", wait)
    return seconds


@pytest.mark.parametrize("error", [FULL, Unavailable("away"), DeadlineExceeded("slow")])
async def test_an_operation_is_repeated_until_storage_accepts_it(stop, waited, error: PodraceError) -> None:
    storage, reported = Storage(error, error), list[str]()
    assert await StorageWaits(stop, reported.append).until_stored(storage.store) == "stored"
    assert storage.calls == 3
    assert reported == [error.message, error.message, ""]


async def test_nothing_is_reported_when_storage_accepts_at_once(stop, waited) -> None:
    reported = list[str]()
    await StorageWaits(stop, reported.append).until_stored(Storage().store)
    assert reported == []
    assert waited == []


async def test_waits_double_up_to_a_limit(stop, waited) -> None:
    await StorageWaits(stop, lambda _: None, draw=lambda: 1.0).until_stored(Storage(*[FULL] * 7).store)
    assert waited == [1, 2, 4, 8, 16, 30, 30]


async def test_a_wait_is_at_least_half_of_the_longest(stop, waited) -> None:
    await StorageWaits(stop, lambda _: None, draw=lambda: 0.0).until_stored(Storage(FULL).store)
    assert waited == [0.5]


async def test_other_errors_are_raised_at_once(stop, waited) -> None:
    storage = Storage(FailedPrecondition("another pod holds the agent"))
    with pytest.raises(FailedPrecondition):
        await StorageWaits(stop, lambda _: None).until_stored(storage.store)
    assert storage.calls == 1


async def test_after_a_stop_the_agent_is_given_back_instead_of_failing(stop, waited) -> None:
    stop.set_result("drained")
    with pytest.raises(Unavailable, match="the disk of the store is full"):
        await StorageWaits(stop, lambda _: None).until_stored(Storage(FULL).store)
    assert waited == []


async def test_a_stop_ends_a_wait_after_one_more_attempt(stop) -> None:
    storage = Storage(*[FULL] * 9)
    with pytest.raises(Unavailable):
        await StorageWaits(stop, lambda _: stop.set_result("drained")).until_stored(storage.store)
    assert storage.calls == 2


class Clock:
    """A clock that advances with each attempt."""

    def __init__(self, seconds: float) -> None:
        self.now, self._seconds = 0.0, seconds

    def __call__(self) -> float:
        return self.now

    def advance(self) -> None:
        self.now += self._seconds


async def test_a_pod_that_gets_no_answer_for_long_gives_up_so_that_another_one_tries(stop, waited) -> None:
    clock = Clock(100.0)
    storage, reported = Storage(*[Unavailable("away")] * 9, on_call=clock.advance), list[str]()
    waits = StorageWaits(stop, reported.append, clock=clock)
    with pytest.raises(StorageUnreachable, match="no answer for 300 s: away"):
        await waits.until_stored(storage.store, unanswered_seconds=300.0)
    assert storage.calls == 3
    assert reported == ["away", "away"]


async def test_a_refusal_because_storage_is_full_is_an_answer(stop, waited) -> None:
    clock = Clock(100.0)
    storage = Storage(*[Unavailable("away"), FULL, Unavailable("away"), FULL] * 5, on_call=clock.advance)
    waits = StorageWaits(stop, lambda _: None, clock=clock)
    assert await waits.until_stored(storage.store, unanswered_seconds=300.0) == "stored"


async def test_an_attempt_that_hangs_is_reported_and_not_repeated(stop, monkeypatch) -> None:
    monkeypatch.setattr(storage_waits, "HUNG_SECONDS", 0.01)
    answer, calls, reported = asyncio.Event(), list[int](), list[str]()

    async def hang() -> str:
        calls.append(1)
        await answer.wait()
        return "stored"

    def report(fault: str) -> None:
        reported.append(fault)
        if len(reported) == 3:
            answer.set()

    assert await StorageWaits(stop, report).until_stored(hang) == "stored"
    assert len(calls) == 1
    assert all("has not answered" in fault for fault in reported[:3])
    assert reported[-1] == ""


async def test_after_a_stop_an_attempt_that_hangs_is_given_up(stop, monkeypatch) -> None:
    monkeypatch.setattr(storage_waits, "HUNG_SECONDS", 0.01)
    stop.set_result("drained")
    with pytest.raises(Unavailable, match="has not answered"):
        await StorageWaits(stop, lambda _: None).until_stored(asyncio.Event().wait)


def test_a_pod_that_cannot_reach_the_leaderboard_gives_its_agent_back_and_exits() -> None:
    ending = ending_of_error(StorageUnreachable("no answer for 300 s"), opened=True)
    assert (ending.outcome, ending.exit_code) == (pb.OUTCOME_DRAINED, EXIT_STORAGE_UNREACHABLE)
