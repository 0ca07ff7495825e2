"""Tests sampling from the replay buffer against a history of single transitions that is not a ring."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from replay_world import CONTINUOUS, COPY, DISCRETE, World, advance, check, ready_indices
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from agentpod.experience import replay_buffer as module
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, replay_fields
from agentpod.experience.transitions import TransitionBatch
from podrace.errors import FailedPrecondition, ResourceExhausted
from simulators.base import Space

WORLDS = [(1, 1, 2), (1, 3, 7), (4, 2, 2), (3, 2, 3), (5, 3, 4), (16, 1, 3), (2, 3, 40)]


@pytest.mark.long
@pytest.mark.parametrize("action_space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("device", [None, COPY])
@pytest.mark.parametrize("layout", WORLDS, ids=str)
def test_every_transition_agrees_with_the_history(
    layout: tuple[int, int, int], device: str | None, action_space: Space
) -> None:
    for seed, n_step in itertools.product(range(2), (1, 2, 3, 7)):
        world = World(*layout, action_space=action_space, seed=seed)
        replay = ReplayBuffer(world.memory, world.horizon, device=device)
        for segments in (1, 1, world.segments, 2):
            advance(world, replay, segments)
            for outstanding in range(min(3, world.segments)):
                if outstanding:
                    world.poison(replay.grant(), world.horizon)
                check(world, replay.gather(ready_indices(world, replay), n_step, 0.9), n_step, 0.9)
            # No worker was lost and nothing was reset: the granted segments still arrive.
            replay._granted = 0


@pytest.mark.parametrize("device", [None, COPY])
def test_windows_end_where_the_environments_were_reset_after_a_loss(device: str | None) -> None:
    for seed in range(5):
        world = World(3, 2, 5, seed=seed)
        replay = ReplayBuffer(world.memory, world.horizon, device=device)
        advance(world, replay, 4 + seed)
        granted = [replay.grant() for _ in range(1 + seed % 2)]
        for first_row in granted:
            world.poison(first_row, world.horizon)
        replay.reclaim()
        world.restart()
        check(world, replay.gather(ready_indices(world, replay), 4, 0.9), 4, 0.9)
        assert replay.grant() == granted[0]
        world.fill(granted[0])
        replay.receive(granted[0])
        advance(world, replay, 1)
        for n_step in (1, 4):
            check(world, replay.gather(ready_indices(world, replay), n_step, 0.9), n_step, 0.9)


def test_a_copy_on_another_device_does_not_change_with_the_memory() -> None:
    world = World(4, 2, 3)
    replay = ReplayBuffer(world.memory, 4, device=COPY)
    advance(world, replay, 3)
    world.poison(0, 12)
    check(world, replay.gather(ready_indices(world, replay), 3, 0.9), 3, 0.9)


@dataclass
class Example:
    """One lane with segments of two rows, filled by the tests below."""

    terminated: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()

    def replay(self) -> ReplayBuffer:
        rows = torch.arange(6.0)
        memory = {
            "observation": rows.view(6, 1, 1).clone(),
            "action": torch.zeros(6, 1, dtype=torch.int64),
            "reward": 10.0 ** rows.view(6, 1),
            "terminated": torch.tensor([[row in self.terminated] for row in range(6)]),
            "truncated": torch.tensor([[row in self.truncated] for row in range(6)]),
            FINAL: 100.0 + rows.view(6, 1, 1),
        }
        replay = ReplayBuffer(memory, 2)
        for _ in range(2):
            replay.receive(replay.grant())
        return replay


@pytest.mark.parametrize(
    ("example", "row", "n_step", "reward", "discount", "following"),
    [
        (Example(), 0, 1, 1.0, 0.5, 1.0),
        (Example(), 0, 3, 1 + 5 + 25, 0.125, 3.0),
        (Example(), 1, 1, 10.0, 0.5, 2.0),
        (Example(), 3, 1, 1000.0, 0.5, 103.0),
        (Example(), 2, 3, 100 + 500, 0.25, 103.0),
        (Example(truncated=(1,)), 0, 3, 1 + 5, 0.25, 101.0),
        (Example(truncated=(0,)), 0, 1, 1.0, 0.5, 100.0),
        (Example(terminated=(1,)), 0, 3, 1 + 5, 0.0, None),
        (Example(terminated=(0,)), 0, 1, 1.0, 0.0, None),
        (Example(terminated=(1,), truncated=(1,)), 0, 3, 1 + 5, 0.0, None),
    ],
    ids=str,
)
def test_hand_computed_windows(
    example: Example, row: int, n_step: int, reward: float, discount: float, following: float | None
) -> None:
    batch = example.replay().gather(torch.tensor([row]), n_step, 0.5)
    assert (batch.observation.item(), batch.reward.item(), batch.discount.item()) == (row, reward, discount)
    assert following is None or batch.next_observation.item() == following


def test_mark_truncated_is_idempotent_and_skips_terminated_steps() -> None:
    world = World(2, 50, 3, end_probability=0.3)
    replay = ReplayBuffer(world.memory, 2)
    replay.mark_truncated()
    assert replay.size == 0
    advance(world, replay, 1)
    before = replay.newest_segment()["truncated"].clone()
    replay.mark_truncated()
    replay.mark_truncated()
    newest = replay.newest_segment()
    assert torch.equal(newest["truncated"][0], before[0])
    assert torch.equal(newest["truncated"][1], ~newest["terminated"][1])


def test_ready_steps_are_sampled_uniformly_and_filling_ones_never() -> None:
    world = World(2, 3, 8)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 13)
    replay.grant()
    replay.grant()
    allowed = ready_indices(world, replay)
    assert len(allowed) == replay.size == 36
    draws = 36 * 1000
    counts = replay.sample(draws, 1, 0.9, torch.Generator().manual_seed(0)).index.bincount(minlength=48)
    assert counts.sum() == counts[allowed].sum() == draws
    # The 99.99 % quantile of chi-square with 35 degrees of freedom is 75.
    assert float(((counts[allowed] - 1000.0).square() / 1000.0).sum()) < 75


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_sample_and_gather_agree(prioritized: bool, n_step: int) -> None:
    world = World(4, 3, 5)
    replay = ReplayBuffer(world.memory, 4, prioritized=prioritized)
    advance(world, replay, 7)
    world.poison(replay.grant(), 4)
    batch = replay.sample(500, n_step, 0.9, torch.Generator().manual_seed(0))
    check(world, batch, n_step, 0.9)
    assert set(batch.index.tolist()) <= set(ready_indices(world, replay).tolist())


class Watched(TorchDispatchMode):
    """Fails when memory is read outside the given steps."""

    def __init__(self, replay: ReplayBuffer, allowed: Tensor) -> None:
        super().__init__()
        self.memory, self.allowed = {ring.data_ptr() for ring in replay._transitions._flat.values()}, allowed
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.index_select.default and args[0].data_ptr() in self.memory:
            self.reads += 1
            assert torch.isin(args[2], self.allowed).all()
        return func(*args, **(kwargs or {}))


@pytest.mark.long
@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("n_step", [1, 5])
def test_filling_memory_is_never_read(n_step: int, on_host: bool) -> None:
    world = World(2, 3, 6, end_probability=0.02)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 8)
    replay._transitions._on_host = on_host
    replay.grant()
    allowed = ready_indices(world, replay)
    with Watched(replay, allowed) as watched:
        replay.gather(allowed, n_step, 0.9)
        replay.sample(1000, n_step, 0.9, torch.Generator().manual_seed(0))
    assert watched.reads == 2 * 7


@pytest.mark.parametrize("gather_bytes", [1, 5000, 2**22])
def test_sample_many_splits_one_large_batch(gather_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_BYTES", gather_bytes)
    world = World(4, 3, 5)
    replay = ReplayBuffer(world.memory, 4)
    advance(world, replay, 6)
    batches = list(replay.sample_many(9, 16, 3, 0.9, torch.Generator().manual_seed(0)))
    assert [len(batch.index) for batch in batches] == [16] * 9
    for batch in batches:
        check(world, batch, 3, 0.9)
    if gather_bytes > 5000:
        whole = replay.sample(9 * 16, 3, 0.9, torch.Generator().manual_seed(0))
        for name in TransitionBatch._fields:
            assert torch.equal(torch.cat([getattr(batch, name) for batch in batches]), getattr(whole, name))


def test_sample_many_by_priority_uses_priorities_set_between_batches() -> None:
    world = World(4, 3, 5)
    replay = ReplayBuffer(world.memory, 4, prioritized=True)
    advance(world, replay, 5)
    batches = replay.sample_many(2, 30, 1, 0.9, torch.Generator().manual_seed(0), beta=0.5)
    next(batches)
    everything = ready_indices(world, replay)
    replay.update_priorities(everything, (everything == 17) * 1e12)
    assert next(batches).index.tolist() == [17] * 30
    assert next(batches, None) is None


def test_steps_are_sampled_in_proportion_to_their_errors_and_weighted_inversely() -> None:
    world = World(4, 2, 3)
    replay = ReplayBuffer(world.memory, 4, prioritized=True, priority_exponent=1.0)
    advance(world, replay, 3)
    errors = torch.arange(24.0)
    replay.update_priorities(torch.arange(24), errors)
    # Of 276,000 equal ranges of the sum, error e gets 1000 e.
    batch = replay.sample(276_000, 1, 0.9, torch.Generator().manual_seed(0), beta=0.5)
    assert batch.index.bincount(minlength=24).tolist() == pytest.approx((1000 * errors).tolist(), abs=2)
    drawn = errors[batch.index]
    torch.testing.assert_close(batch.weight, (drawn / drawn.min()).pow(-0.5), rtol=1e-4, atol=0)


def test_new_steps_have_the_largest_priority_and_granted_ones_have_none() -> None:
    world = World(4, 2, 3)
    replay = ReplayBuffer(world.memory, 4, prioritized=True, priority_exponent=1.0)
    advance(world, replay, 3)
    replay.update_priorities(torch.arange(24), torch.full((24,), 5.0))
    first_row = replay.grant()
    replay.update_priorities(torch.arange(8), torch.full((8,), 7.0))
    generator = torch.Generator().manual_seed(0)
    assert set(replay.sample(100, 1, 0.9, generator).index.tolist()) == set(range(8, 24))
    world.fill(first_row)
    replay.receive(first_row)
    counts = replay.sample(2400, 1, 0.9, generator).index.bincount()
    assert counts.tolist() == pytest.approx([100] * 24, abs=2)


def test_lost_steps_have_no_priority_until_they_are_received() -> None:
    world = World(4, 2, 3)
    replay = ReplayBuffer(world.memory, 4, prioritized=True)
    advance(world, replay, 3)
    replay.grant()
    replay.reclaim()
    generator = torch.Generator().manual_seed(0)
    assert set(replay.sample(100, 1, 0.9, generator).index.tolist()) == set(range(8, 24))
    advance(world, replay, 1)
    assert set(replay.sample(100, 1, 0.9, generator).index.tolist()) == set(range(24))


def test_the_ring_wraps_around_and_counts_its_steps() -> None:
    world = World(4, 3, 5)
    replay = ReplayBuffer(world.memory, 4)
    assert (replay.size, replay.newest_row, replay.steps, replay.capacity, replay.segment_steps) == (0, -1, 0, 60, 12)
    first_rows = []
    for received in range(1, 12):
        first_rows.append(replay.grant())
        assert replay.size == 12 * min(received - 1, 4)
        world.fill(first_rows[-1])
        replay.receive(first_rows[-1])
        assert (replay.size, replay.steps) == (12 * min(received, 5), 12 * received)
        assert replay.newest_row == first_rows[-1] + 3
        assert torch.equal(replay.newest_segment()["reward"], world.memory["reward"][replay.newest_row - 3 :][:4])
    assert first_rows == [0, 4, 8, 12, 16, 0, 4, 8, 12, 16, 0]


def test_segments_are_received_in_the_order_of_their_grants() -> None:
    replay = ReplayBuffer(World(4, 2, 4).memory, 4)
    with pytest.raises(FailedPrecondition, match="row 0"):
        replay.receive(0)
    assert [replay.grant(), replay.grant()] == [0, 4]
    with pytest.raises(ResourceExhausted, match="2 segments"):
        replay.grant()
    with pytest.raises(FailedPrecondition, match="row 4"):
        replay.receive(4)
    replay.receive(0)
    assert replay.grant() == 8


def test_an_empty_buffer_cannot_be_sampled() -> None:
    world = World(4, 2, 2)
    replay = ReplayBuffer(world.memory, 4)
    generator = torch.Generator()
    with pytest.raises(FailedPrecondition, match="receive a segment first"):
        replay.sample(3, 1, 0.9, generator)
    advance(world, replay, 2)
    replay.grant()
    replay.grant()
    with pytest.raises(FailedPrecondition, match="receive a segment first"):
        next(replay.sample_many(2, 3, 1, 0.9, generator))


@pytest.mark.parametrize("n_step", [1, 3])
def test_observations_of_any_shape_are_gathered(n_step: int) -> None:
    for shape, dtype in (((), torch.float64), ((2, 3), torch.uint8)):
        fields = replay_fields(Space("continuous", shape, dtype), DISCRETE, 6, 2)
        memory = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in fields.items()}
        numbers = torch.arange(12, dtype=dtype).view(6, 2, *(1,) * len(shape))
        memory["observation"] += numbers
        memory[FINAL] += numbers + 100
        replay = ReplayBuffer(memory, 2)
        replay.receive(replay.grant())
        for on_host in (True, False):
            replay._transitions._on_host = on_host
            batch = replay.gather(torch.tensor([0, 3]), n_step, 0.9)
            assert batch.observation.dtype == batch.next_observation.dtype == dtype
            assert torch.equal(batch.observation, memory["observation"][[0, 1], [0, 1]])
            expected = memory["observation"][1, 0] if n_step == 1 else memory[FINAL][1, 0]
            assert torch.equal(batch.next_observation, torch.stack((expected, memory[FINAL][1, 1])))


class Unasked(TorchDispatchMode):
    """Fails on every operation that would synchronize with the device if the tensors were on one."""

    WAITING = ("_local_scalar_dense", "is_nonzero", "item", "nonzero", "masked_select", "unique", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.WAITING, name
        if name in ("index", "index_put", "index_put_"):
            assert not any(mask is not None and mask.dtype == torch.bool for mask in args[1]), f"{name} by a mask"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_sampling_never_synchronizes_with_the_device(n_step: int, prioritized: bool) -> None:
    world = World(4, 3, 5)
    replay = ReplayBuffer(world.memory, 4, prioritized=prioritized)
    advance(world, replay, 7)
    first_row = replay.grant()
    # Uses the code path of a device, which must not change the results.
    replay._transitions._on_host = False
    generator = torch.Generator().manual_seed(0)
    with Unasked():
        batches = list(replay.sample_many(3, 100, n_step, 0.9, generator))
        batches.append(replay.sample(100, n_step, 0.9, generator))
        if prioritized:
            replay.update_priorities(batches[0].index, batches[0].reward.abs())
        replay.receive(first_row)
        replay.grant()
    for batch in batches:
        check(world, batch, n_step, 0.9)
