"""Tests that steps of other agents are replayed as they were observed, together with the agent's own."""

import math

import pytest
import torch
from replay_world import CONTINUOUS, DISCRETE, OBSERVED, World, advance

from agentpod.experience.foreign_memory import BLOCKS_AT_ONCE, ForeignMemory
from agentpod.experience.mixed_replay import MixedReplay, own_rows
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS, dense_steps
from agentpod.experience.replay_view import ReplayPiece
from podrace.errors import InvalidArgument

Observed = dict[float, tuple[float, bool, list[float]]]


def experienced(_: World, replay: ReplayBuffer) -> dict[str, torch.Tensor]:
    """Returns all steps of a memory, as another agent would read them."""
    first, tensors = replay.read(replay.first_segment, replay.end_segment)
    return dense_steps(ReplayPiece(first, replay.horizon, tensors))


def observed(world: World) -> Observed:
    """Returns reward, termination and what followed of every step, by the number of its observation."""
    return {
        step.observation[0]: (step.reward, step.terminated, step.left_behind)
        for steps in world.history
        for step in steps
    }


def world_of(seed: int, *, horizon: int = 4, count: int = 3, segments: int = 60) -> tuple[World, ReplayBuffer]:
    world = World(horizon, count, segments, seed=seed)
    replay = ReplayBuffer(world.memory, horizon)
    advance(world, replay, segments - 1)
    return world, replay


def test_every_sampled_transition_of_others_was_observed() -> None:
    world, replay = world_of(1)
    memory = ForeignMemory(OBSERVED, DISCRETE, 10_000)
    steps = experienced(world, replay)
    added = memory.add(steps, published=5.0)
    assert added == len(steps["reward"]) // BLOCK_ROWS * BLOCK_ROWS * world.count
    memory.take_over()
    assert memory.filled(9.0).steps == added == memory.replay.size
    assert memory.filled(9.0).age_seconds == 4.0
    known = observed(world)
    batch = memory.replay.sample(2_000, 1, 0.9, torch.Generator().manual_seed(0))
    assert batch.next_observation.isfinite().all()
    for observation, reward, discount, following in zip(
        batch.observation.tolist(),
        batch.reward.tolist(),
        batch.discount.tolist(),
        batch.next_observation.tolist(),
        strict=True,
    ):
        expected_reward, terminated, left_behind = known[observation[0]]
        assert math.isclose(reward, expected_reward, abs_tol=1e-6)
        assert (discount == 0.0) == terminated
        assert terminated or following == left_behind


def test_windows_of_several_steps_end_with_their_block() -> None:
    world, replay = world_of(2)
    memory = ForeignMemory(OBSERVED, DISCRETE, 10_000)
    memory.add(experienced(world, replay), published=0.0)
    memory.take_over()
    known = observed(world)
    batch = memory.replay.sample(2_000, 5, 1.0, torch.Generator().manual_seed(0))
    for observation, discount, following in zip(
        batch.observation.tolist(), batch.discount.tolist(), batch.next_observation.tolist(), strict=True
    ):
        at = observation[0]
        for _ in range(5):
            _, terminated, left_behind = known[at]
            if terminated or left_behind == following:
                break
            at = left_behind[0]
        assert discount == 0.0 if terminated else left_behind == following


def test_the_newest_steps_are_kept_and_an_update_takes_over_a_bounded_number() -> None:
    memory = ForeignMemory(OBSERVED, DISCRETE, 4 * BLOCK_ROWS)
    for seed in range(3):
        memory.add(experienced(*world_of(seed)), published=float(seed))
    memory.take_over()
    filled = memory.filled(2.0)
    assert filled.steps == 4 * BLOCK_ROWS
    assert filled.age_seconds < 1.0, "blocks that do not fit are dropped before they are taken over"
    large = ForeignMemory(OBSERVED, DISCRETE, 10 * BLOCKS_AT_ONCE * BLOCK_ROWS)
    steps = {name: torch.cat([tensor] * 40) for name, tensor in experienced(*world_of(0)).items()}
    large.add(steps, published=0.0)
    large.take_over()
    assert large.replay.size == BLOCKS_AT_ONCE * BLOCK_ROWS


def test_only_steps_that_are_kept_are_counted() -> None:
    memory = ForeignMemory(OBSERVED, DISCRETE, 4 * BLOCK_ROWS)
    steps = {name: tensor[: 3 * BLOCK_ROWS, :1] for name, tensor in experienced(*world_of(0)).items()}
    assert [memory.add(steps, published=0.0) for _ in range(3)] == [3 * BLOCK_ROWS, BLOCK_ROWS, 0]
    memory.take_over()
    assert memory.replay.size == 4 * BLOCK_ROWS
    assert memory.add(steps, published=0.0) == 3 * BLOCK_ROWS


@pytest.mark.parametrize("name", ["reward", "observation", "final_observation"])
def test_numbers_that_are_not_finite_are_refused(name: str) -> None:
    steps = experienced(*world_of(0))
    steps[name].view(-1)[7] = math.nan
    memory = ForeignMemory(OBSERVED, DISCRETE, 10_000)
    with pytest.raises(InvalidArgument, match=f"{name} has numbers that are not finite"):
        memory.add(steps, published=0.0)
    memory.take_over()
    assert memory.replay.size == 0


@pytest.mark.parametrize("action", [-1, 3])
def test_actions_that_are_no_choice_of_the_environment_are_refused(action: int) -> None:
    steps = experienced(*world_of(0))
    steps["action"][3, 1] = action
    with pytest.raises(InvalidArgument, match="not among the choices"):
        ForeignMemory(OBSERVED, DISCRETE, 10_000).add(steps, published=0.0)


def test_without_steps_of_others_batches_are_bitwise_those_of_the_own_memory() -> None:
    _, own = world_of(4)
    mixed = MixedReplay(own, ForeignMemory(OBSERVED, DISCRETE, 10_000), own_share=0.5)
    alone, both = ([*memory.sample_many(3, 32, 2, 0.9, torch.Generator().manual_seed(1))] for memory in (own, mixed))
    for first, second in zip(alone, both, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("own_share", "rows"), [(0.5, 16), (0.8, 26), (1.0, 32), (0.05, 2)])
def test_a_batch_has_the_stated_share_of_own_steps_first(own_share: float, rows: int) -> None:
    (mine, own), (theirs, other) = world_of(5), world_of(6)
    foreign = ForeignMemory(OBSERVED, DISCRETE, 10_000)
    foreign.add(experienced(theirs, other), published=0.0)
    mixed = MixedReplay(own, foreign, own_share)
    assert (mixed.steps, mixed.segment_steps) == (own.steps, own.segment_steps)
    rewards = {step.reward for steps in mine.history for step in steps}
    for batch in mixed.sample_many(4, 32, 1, 0.9, torch.Generator().manual_seed(1)):
        assert len(batch.reward) == 32
        found = [any(math.isclose(reward, one, abs_tol=1e-6) for one in rewards) for reward in batch.reward.tolist()]
        assert found[:rows] == [True] * rows
        assert found[rows:] == [False] * (32 - rows)


def test_a_share_that_is_a_whole_number_of_rows_is_exactly_that_number() -> None:
    assert [own_rows(100, percent / 100) for percent in range(5, 101)] == list(range(5, 101))
    assert [own_rows(10, tenths / 10) for tenths in range(1, 11)] == list(range(1, 11))
    assert own_rows(1, 0.05) == 1


def test_errors_of_foreign_steps_change_no_priority() -> None:
    world, _ = world_of(7)
    own = ReplayBuffer(world.memory, 4, prioritized=True)
    advance(world, own, 10)
    foreign = ForeignMemory(OBSERVED, DISCRETE, 10_000)
    foreign.add(experienced(*world_of(8)), published=0.0)
    mixed = MixedReplay(own, foreign, own_share=0.5)
    (batch,) = mixed.sample_many(1, 8, 1, 0.9, torch.Generator().manual_seed(0), beta=0.4)
    before = own.priorities()["leaves"].flatten().clone()
    mixed.update_priorities(batch.index, torch.arange(8.0) + 50.0)
    changed = (own.priorities()["leaves"].flatten() != before).sum()
    assert 0 < changed <= 4


def test_continuous_actions_need_no_choices() -> None:
    world = World(4, 2, 40, action_space=CONTINUOUS)
    replay = ReplayBuffer(world.memory, 4)
    advance(world, replay, 39)
    memory = ForeignMemory(OBSERVED, CONTINUOUS, 1_000)
    assert memory.add(experienced(world, replay), published=0.0) == 2 * BLOCK_ROWS * 2
