"""When checkpoints are stored between evaluations."""

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentpod.learner.snapshots import InterimCheckpoints
from podrace.errors import Unavailable


class Checkpoints:
    """Stores copies once it is ready."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.ready = asyncio.Event()
        self.error: Exception | None = None
        self.refuses = False

    async def publish_interim(self, frozen: Any) -> bool:
        await self.ready.wait()
        if self.error:
            raise self.error
        if not self.refuses:
            self.stored.append(frozen)
        return not self.refuses


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def checkpoints() -> Checkpoints:
    return Checkpoints()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def interim_of(
    checkpoints: Any, clock: Clock, period_seconds: float = 10.0, on_stored: Callable[[int], None] = lambda _: None
) -> InterimCheckpoints:
    return InterimCheckpoints(checkpoints, period_seconds, clock, on_stored)


def copy_at(environment_steps: int) -> Any:
    return SimpleNamespace(counters=SimpleNamespace(environment_steps=environment_steps))


async def test_a_copy_is_due_a_period_after_the_last_one_whatever_it_was_taken_for(
    checkpoints: Checkpoints, clock: Clock
) -> None:
    interim = interim_of(checkpoints, clock)
    clock.now = 109.9
    assert not interim.due()
    clock.now = 110.0
    assert interim.due()
    interim.note()
    assert not interim.due()
    clock.now = 120.0
    assert interim.due()


async def test_no_further_copy_is_due_while_one_is_being_stored(checkpoints: Checkpoints, clock: Clock) -> None:
    interim, frozen = interim_of(checkpoints, clock), copy_at(500)
    interim.store(frozen)
    clock.now = 500.0
    assert not interim.due()
    checkpoints.ready.set()
    await interim.settle()
    assert checkpoints.stored == [frozen]
    assert interim.due()


async def test_the_training_continues_if_a_copy_cannot_be_stored(checkpoints: Checkpoints, clock: Clock) -> None:
    interim = interim_of(checkpoints, clock)
    checkpoints.error = Unavailable("the store does not answer")
    checkpoints.ready.set()
    interim.store(copy_at(500))
    await interim.settle()
    assert checkpoints.stored == []


async def test_the_end_of_an_assignment_does_not_wait_for_a_store_that_accepts_nothing(
    checkpoints: Checkpoints, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentpod.learner.snapshots.SETTLE_SECONDS", 0.01)
    interim = interim_of(checkpoints, clock)
    interim.store(copy_at(500))
    await interim.settle()
    assert checkpoints.stored == []


async def test_without_a_period_none_is_due(checkpoints: Checkpoints, clock: Clock) -> None:
    interim = interim_of(checkpoints, clock, math.inf)
    clock.now = 1e9
    assert not interim.due()


@pytest.mark.parametrize("why_not", ["", "a score waits for the leaderboard", "the store does not answer"])
async def test_a_checkpoint_counts_as_stored_only_if_it_is(
    checkpoints: Checkpoints, clock: Clock, why_not: str
) -> None:
    counted: list[int] = []
    interim = interim_of(checkpoints, clock, on_stored=counted.append)
    checkpoints.ready.set()
    checkpoints.refuses = "score" in why_not
    checkpoints.error = Unavailable(why_not) if "store" in why_not else None
    interim.store(copy_at(500))
    await interim.settle()
    assert counted == ([] if why_not else [500])
