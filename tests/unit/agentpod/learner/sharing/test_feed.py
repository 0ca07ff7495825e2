"""Tests that a feed fills the memory of foreign steps, reports it, and survives what cannot be used."""

import asyncio
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from replay_world import DISCRETE, OBSERVED

from agentpod.experience.foreign_memory import ForeignMemory
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS
from agentpod.learner.interfaces import ForeignSteps, Steps
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.learner.sharing.feed import ExperienceFeed
from podrace.errors import Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class Checkpoints:
    """Answers from a script; the last answer is that nothing is new."""

    def __init__(self, *answers: Sequence[ForeignSteps] | Exception) -> None:
        self.answers, self.reads = list(answers), asyncio.Semaphore(0)

    async def read_experience(self, replay: ReplayBuffer) -> Sequence[ForeignSteps]:
        self.reads.release()
        answer = self.answers.pop(0) if self.answers else ()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Lease:
    """A lease whose work does not end by itself."""

    def __init__(self) -> None:
        self.stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.held, self.stopped_early, self.running_seconds, self.evaluation_epoch = True, False, None, 0


def steps(rows: int, reward: float = 1.0) -> Steps:
    return {
        "observation": torch.zeros(rows, 1, 2),
        "action": torch.zeros(rows, 1, dtype=torch.int64),
        "reward": torch.full((rows, 1), reward),
        "terminated": torch.zeros(rows, 1, dtype=torch.bool),
        "truncated": torch.zeros(rows, 1, dtype=torch.bool),
        "final_observation": torch.zeros(rows, 1, 2),
    }


def feed_of(checkpoints: Checkpoints, lease: Lease, progress: pb.Progress, now: list[float]) -> ExperienceFeed:
    return ExperienceFeed(
        checkpoints,  # type: ignore[arg-type] # the only method that a feed calls
        ForeignMemory(OBSERVED, DISCRETE, 1_000),
        ProgressReporter(SimpleNamespace(progress=progress)),
        lease,
        period_seconds=0.0,
        clock=lambda: now[0],
    )


async def test_what_was_received_is_reported() -> None:
    progress, now = pb.Progress(), [10.0]
    runs = [steps(2 * BLOCK_ROWS), steps(5)]
    found = [ForeignSteps("t-a0", [steps(BLOCK_ROWS)], age_seconds=60.0), ForeignSteps("t-a1", runs)]
    feed = feed_of(Checkpoints(found, [ForeignSteps("t-a1", [steps(BLOCK_ROWS)])]), Lease(), progress, now)
    await feed.read_once()
    feed.memory.take_over()
    now[0] = 14.0
    await feed.read_once()
    assert progress.shared_experience == pb.SharedExperience(
        agents=2, environment_steps=4 * BLOCK_ROWS, memory_steps=3 * BLOCK_ROWS, age_seconds=24.0
    )


async def test_memories_that_cannot_be_used_are_named_and_the_others_are_used() -> None:
    progress = pb.Progress()
    found = [
        ForeignSteps("t-a0", left_out="object 12 is not in the store"),
        ForeignSteps("t-a1", [steps(BLOCK_ROWS, reward=math.inf)]),
        ForeignSteps("t-a2", [steps(BLOCK_ROWS)]),
    ]
    feed = feed_of(Checkpoints(found[:1], found), Lease(), progress, [0.0])
    await feed.read_once()
    assert progress.shared_experience.left_out == "replay memory of t-a0: object 12 is not in the store"
    await feed.read_once()
    assert progress.shared_experience.left_out == "replay memory of t-a1: reward has numbers that are not finite"
    assert (progress.shared_experience.agents, progress.shared_experience.environment_steps) == (1, BLOCK_ROWS)


async def test_of_a_memory_with_a_run_that_cannot_be_used_the_other_runs_are_used_and_counted() -> None:
    progress, runs = pb.Progress(), [steps(BLOCK_ROWS), steps(BLOCK_ROWS, reward=math.nan), steps(2 * BLOCK_ROWS)]
    found = [ForeignSteps("t-a0", runs), ForeignSteps("t-a1", [steps(BLOCK_ROWS)], "replay.segments.3: no rows")]
    feed = feed_of(Checkpoints(found[:1], found[1:]), Lease(), progress, [0.0])
    await feed.read_once()
    feed.memory.take_over()
    received = progress.shared_experience
    assert received.left_out == "replay memory of t-a0: reward has numbers that are not finite"
    assert (received.agents, received.environment_steps) == (1, feed.memory.replay.size) == (1, 3 * BLOCK_ROWS)
    await feed.read_once()
    received = progress.shared_experience
    assert received.left_out == "replay memory of t-a1: replay.segments.3: no rows"
    assert (received.agents, received.environment_steps) == (2, 4 * BLOCK_ROWS)


async def test_after_an_error_the_next_poll_tries_again_and_a_stop_ends_the_feed(log_lines: Any) -> None:
    lease = Lease()
    faults = Unavailable("away"), RuntimeError("shapes differ")
    checkpoints = Checkpoints(*faults, [ForeignSteps("t-a0", [steps(BLOCK_ROWS)])])
    progress = pb.Progress()
    feed = feed_of(checkpoints, lease, progress, [0.0])
    feed.start()
    for _ in range(4):
        await checkpoints.reads.acquire()
    assert progress.shared_experience.environment_steps == BLOCK_ROWS
    lines = [line for line in log_lines if line["event"] == "the experience of other agents was not read"]
    assert [line["log_level"] for line in lines] == ["warning", "error"]
    lease.stop.set_result("drain")
    async with asyncio.timeout(5):
        await feed.close()


async def test_a_feed_that_was_not_started_can_be_closed() -> None:
    await feed_of(Checkpoints(), Lease(), pb.Progress(), [0.0]).close()
