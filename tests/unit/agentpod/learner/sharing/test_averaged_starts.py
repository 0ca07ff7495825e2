"""A child is scored before it starts from an average, and whatever goes wrong leaves it at its parent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from agentpod.algorithms import Algorithm, make
from agentpod.compute_thread import ComputeThread
from agentpod.learner.checkpoint_files import Counters, Mate, StartingState, freeze
from agentpod.learner.evaluation_schedule import EvaluationTime
from agentpod.learner.sharing import crossover
from agentpod.learner.sharing.crossover import Crossover, prefers_average
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DataLoss
from podrace.specification.resolve import parse, resolve
from simulators import make as make_simulator

SIMULATOR = make_simulator("cartpole", 4)
SPEC = resolve(
    parse(
        {
            "environment": {"id": "cartpole"},
            "algorithms": {"ppo": {}},
            "objective": {"environment_steps": 1000},
            "evaluation": {"episodes": 6},
        },
        source="test",
    )
)


def agent(seed: int, **settings: Any) -> Algorithm:
    values = {"hidden_sizes": (8,), **settings}
    return make("ppo", SIMULATOR.observation_space, SIMULATOR.action_space, values, seed=seed)


def parts_of(algorithm: Algorithm) -> dict[str, bytes]:
    return freeze(algorithm, Counters()).parts()


class Lease:
    """A lease that a test stops."""

    def __init__(self) -> None:
        self.stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.held, self.stopped_early, self.running_seconds, self.evaluation_epoch = True, False, None, 0


class ScoredRoles:
    """An evaluator whose scores are functions of the policy, and a ring that remembers the policy."""

    def __init__(self, score: Callable[[Tensor], float]) -> None:
        self.score, self.ring, self.scored = score, self, list[Tensor]()
        self.requests: list[dict[str, Any]] = []
        self.hangs = self.fails = False
        self.readers = 0

    def publish(self, flat: Tensor, version: int) -> None:
        self.scored.append(flat.clone())

    def hold(self) -> "ScoredRoles":
        self.readers += 1
        return self

    def release(self) -> None:
        self.readers -= 1

    async def evaluate(self, held: Any, **request: Any) -> Evaluation:
        self.requests.append(request)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.fails and len(self.scored) == 2:
            raise DataLoss("a return is not finite")
        return Evaluation(mean_return=self.score(self.scored[-1]), episodes=request["episodes"], wall_seconds=2.0)


class World:
    """A child of one agent that may be averaged with another."""

    def __init__(self, compute: ComputeThread, roles: ScoredRoles, *mates: Algorithm) -> None:
        self.roles, self.lease, self.spent = roles, Lease(), EvaluationTime()
        self.parent, self.child = agent(1), agent(1)
        self.start = StartingState(parts=parts_of(self.parent), mates=tuple(Mate(parts_of(m), "a mate") for m in mates))
        self._crossover = Crossover(cast(Any, roles), compute, self.lease, SPEC, self.spent)

    async def choose(self) -> bool:
        return await self._crossover.choose(self.child, lambda: agent(7), self.start)

    @property
    def is_parent(self) -> bool:
        state, own = self.child.state_dict(), self.parent.state_dict()
        same = all(torch.equal(state[name], own[name]) for name in own)
        return same and torch.equal(self.child.policy.flat, self.parent.policy.flat)


@pytest.fixture
async def compute() -> AsyncIterator[ComputeThread]:
    thread = ComputeThread()
    yield thread
    thread.close()


async def test_the_average_is_used_if_it_scores_no_lower_on_the_same_episodes(compute: ComputeThread) -> None:
    for gain in (0.0, 1.0):
        world = World(compute, ScoredRoles(lambda _: 5.0), agent(2))
        world.roles.score = lambda flat, world=world, gain=gain: (
            5.0 + gain * (not torch.equal(flat, world.parent.policy.flat))
        )
        assert await world.choose()
        assert not world.is_parent
        first, second = world.roles.requests
        assert first == second
        assert first["episodes"] == 6
        mean = (world.parent.policy.flat.double() + agent(2).policy.flat.double()) / 2
        trained = world.roles.scored[1]
        assert torch.isclose(trained.double(), mean).float().mean() > 0.8, "all but the statistics"
        assert torch.equal(trained, world.child.policy.flat), "what was scored is what is used"
        assert (world.spent.spent_seconds, world.roles.readers) == (4.0, 0)


async def test_an_average_that_scores_lower_is_not_used(compute: ComputeThread) -> None:
    world = World(compute, ScoredRoles(lambda _: 0.0), agent(2))
    world.roles.score = lambda flat: 1.0 if torch.equal(flat, world.parent.policy.flat) else 0.5
    assert not await world.choose()
    assert world.is_parent


async def test_the_average_of_equal_parents_is_the_parent(compute: ComputeThread) -> None:
    world = World(compute, ScoredRoles(lambda flat: float(flat.sum())), agent(1))
    assert await world.choose()
    assert torch.equal(world.child.policy.flat, world.parent.policy.flat)


async def test_a_mate_of_another_layout_leaves_the_parent_and_says_why(compute: ComputeThread, log_lines: Any) -> None:
    world = World(compute, ScoredRoles(lambda _: 5.0), agent(2, hidden_sizes=(16,)))
    assert not await world.choose()
    assert world.is_parent
    (line,) = [line for line in log_lines if line["event"] == "starts from its parent and not from the average"]
    assert "\n" not in line["reason"]


async def test_a_mate_with_numbers_that_are_not_finite_leaves_the_parent(compute: ComputeThread) -> None:
    broken = agent(2)
    with torch.no_grad():
        broken.fusible().parameters["parameters"][-1] = float("nan")
    world = World(compute, ScoredRoles(lambda _: 5.0), broken)
    assert not await world.choose()
    assert world.is_parent
    assert len(world.roles.requests) == 1, "the average is not scored"


async def test_an_average_that_needs_too_much_memory_leaves_the_parent(
    compute: ComputeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def average_a_part(into: Any, others: Any) -> None:
        with torch.no_grad():
            into.parameters["parameters"][0] += 1.0
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(crossover, "average_into", average_a_part)
    world = World(compute, ScoredRoles(lambda _: 5.0), agent(2))
    assert not await world.choose()
    assert world.is_parent
    assert len(world.roles.requests) == 1, "the average is not scored"


async def test_a_new_evaluation_epoch_between_the_scores_changes_no_episodes(compute: ComputeThread) -> None:
    world = World(compute, ScoredRoles(lambda _: 5.0), agent(2))

    def renewed(flat: Tensor) -> float:
        world.lease.evaluation_epoch += 1
        return 5.0

    world.roles.score = renewed
    assert await world.choose()
    first, second = world.roles.requests
    assert first == second


async def test_damaged_files_of_a_mate_leave_the_parent(compute: ComputeThread) -> None:
    world = World(compute, ScoredRoles(lambda _: 5.0), agent(2))
    world.start = StartingState(parts=world.start.parts, mates=(Mate({"policy": b"torn", "learner": b""}, "a mate"),))
    assert not await world.choose()
    assert world.is_parent


async def test_an_average_that_cannot_be_scored_is_not_used(compute: ComputeThread) -> None:
    world = World(compute, ScoredRoles(lambda _: 5.0), agent(2))
    world.roles.fails = True
    assert not await world.choose()
    assert world.is_parent
    assert world.roles.readers == 0


async def test_a_stop_ends_the_scoring_and_leaves_the_parent(compute: ComputeThread) -> None:
    world = World(compute, ScoredRoles(lambda _: 5.0), agent(2))
    world.roles.hangs = True
    world.lease.stop.set_result("drain")
    async with asyncio.timeout(5):
        assert not await world.choose()
    assert world.is_parent
    assert world.roles.readers == 0


@pytest.mark.parametrize(
    ("average", "parent", "expected"),
    [
        (Evaluation(mean_return=2.0), Evaluation(mean_return=1.0), True),
        (Evaluation(mean_return=1.0), Evaluation(mean_return=1.0), True),
        (Evaluation(mean_return=0.9), Evaluation(mean_return=1.0), False),
        (Evaluation(mean_return=2.0), Evaluation(mean_return=1.0, evaluator_fault="away"), False),
    ],
)
def test_the_better_score_decides_and_only_scores_of_one_evaluator_are_compared(
    average: Evaluation, parent: Evaluation, expected: bool
) -> None:
    better, reason = prefers_average(average, parent)
    assert better is expected
    assert reason
    assert "\n" not in reason
