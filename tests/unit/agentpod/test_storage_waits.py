import asyncio
from collections.abc import Callable

import pytest

from agentpod import storage_waits
from agentpod.storage_waits import StorageWaits
from podrace.errors import DeadlineExceeded, FailedPrecondition, PodraceError, ResourceExhausted, Unavailable

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
    asyncio.get_running_loop().call_later(0, stop.set_result, "drained")
    with pytest.raises(Unavailable):
        await StorageWaits(stop, lambda _: None).until_stored(storage.store)
    assert storage.calls == 2
