"""Tests the replay buffer against a history of single transitions that is not a ring.

Memory that must not be read is poisoned (NaN, random flags), so that reading it changes results. Observations are
numbered, so that each identifies its step.
"""

import itertools
import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from agentpod.experience import replay_buffer as module
from agentpod.experience.replay_buffer import ReplayBuffer, TransitionBatch
from agentpod.experience.replay_layout import FINAL, check_memory, replay_bytes, replay_fields, replay_rows
from agentpod.experience.rollout import Lanes, collect
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted
from simulators import make
from simulators.base import Space

OBSERVED = Space("continuous", (2,), torch.float32)
DISCRETE = Space("discrete", (), torch.int64, n=3)
CONTINUOUS = Space("continuous", (2,), torch.float32, low=(-1.0, -1.0), high=(1.0, 1.0))
COPY = "cpu:0"
"""The memory's device under another name: the replay buffer keeps a copy, as it does on another device."""


@dataclass
class Transition:
    """One step of one lane, and the final observation of an episode that ended there."""

    observation: list[float]
    action: list[float]
    reward: float
    terminated: bool
    truncated: bool
    left_behind: list[float]


@dataclass
class World:
    """Lanes of random episodes, written into the buffer as a worker writes them, and recorded one by one."""

    horizon: int
    count: int
    segments: int
    action_space: Space = DISCRETE
    end_probability: float = 0.15
    seed: int = 0
    memory: dict[str, Tensor] = field(init=False)
    history: list[list[Transition]] = field(default_factory=list, init=False)
    row_time: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        fields = replay_fields(OBSERVED, self.action_space, self.horizon * self.segments, self.count)
        self.memory = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in fields.items()}
        self.generator = torch.Generator().manual_seed(self.seed)
        self.numbers = itertools.count(1)
        self.poison(0, self.horizon * self.segments)
        self.now = [self.observe() for _ in range(self.count)]

    def observe(self) -> list[float]:
        number = float(next(self.numbers))
        return [number, -number]

    def poison(self, first_row: int, rows: int) -> None:
        for tensor in self.memory.values():
            part = tensor[first_row : first_row + rows]
            if tensor.dtype.is_floating_point:
                part.fill_(math.nan)
            else:
                part.random_(0, 2, generator=self.generator)

    def fill(self, first_row: int) -> None:
        """Writes one granted segment."""
        self.poison(first_row, self.horizon)
        for row in range(first_row, first_row + self.horizon):
            steps = [self.step(lane) for lane in range(self.count)]
            self.row_time[row] = len(self.history)
            self.history.append(steps)
            for lane, step in enumerate(steps):
                self.write(row, lane, step, last=row == first_row + self.horizon - 1)

    def step(self, lane: int) -> Transition:
        terminated, truncated = (torch.rand(2, generator=self.generator) < self.end_probability).tolist()
        truncated &= not terminated
        action, reward = torch.rand(2, generator=self.generator), torch.randn((), generator=self.generator)
        acted = action.tolist() if self.action_space is CONTINUOUS else float(int(action[0] * 3))
        observation, left_behind = self.now[lane], self.observe()
        self.now[lane] = self.observe() if terminated or truncated else left_behind
        return Transition(observation, acted, float(reward), terminated, truncated, left_behind)

    def write(self, row: int, lane: int, step: Transition, *, last: bool) -> None:
        for name in ("observation", "action", "reward", "terminated", "truncated"):
            self.memory[name][row, lane] = torch.tensor(getattr(step, name))
        if step.truncated:
            self.memory[FINAL][row, lane] = torch.tensor(step.left_behind)
        elif last:
            self.memory[FINAL][row, lane] = torch.tensor(self.now[lane])

    def restart(self) -> None:
        """Resets the environments: the last written steps have no successor."""
        for step in self.history[-1]:
            step.truncated |= not step.terminated
        self.now = [self.observe() for _ in range(self.count)]

    def expected(
        self, row: int, lane: int, n_step: int, discount: float
    ) -> tuple[Transition, float, float, list[float]]:
        """Returns the first step, the sum of rewards, the discount and the next observation, by definition."""
        time, total, power = self.row_time[row], 0.0, 1.0
        for step in (steps[lane] for steps in self.history[time : time + n_step]):
            total += power * step.reward
            power *= discount
            if step.terminated:
                return self.history[time][lane], total, 0.0, []
            if step.truncated:
                break
        return self.history[time][lane], total, power, step.left_behind


def check(world: World, batch: TransitionBatch, n_step: int, discount: float) -> None:
    for index, observation, action, reward, power, following in zip(
        *(getattr(batch, name).tolist() for name in ("index", "observation", "action", "reward", "discount")),
        batch.next_observation.tolist(),
        strict=True,
    ):
        first, total, expected_power, left_behind = world.expected(*divmod(index, world.count), n_step, discount)
        assert observation == first.observation
        assert action == first.action
        assert math.isclose(reward, total, abs_tol=1e-5)
        assert math.isclose(power, expected_power, abs_tol=1e-6)
        assert following == left_behind or not expected_power
    assert batch.next_observation.isfinite().all()
    assert batch.weight.tolist() == [1.0] * len(batch.index)


def advance(world: World, replay: ReplayBuffer, segments: int) -> None:
    for _ in range(segments):
        first_row = replay.grant()
        world.fill(first_row)
        replay.receive(first_row)


def ready_indices(world: World, replay: ReplayBuffer) -> Tensor:
    """Returns all steps that can be sampled: the newest steps of the history."""
    rows = [row for row, time in world.row_time.items() if time >= len(world.history) - replay.size // world.count]
    return (torch.tensor(rows).unsqueeze(1) * world.count + torch.arange(world.count)).flatten()


WORLDS = [(1, 1, 2), (1, 3, 7), (4, 2, 2), (3, 2, 3), (5, 3, 4), (16, 1, 3), (2, 3, 40)]


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
        self.memory, self.allowed = {ring.data_ptr() for ring in replay._flat.values()}, allowed
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.index_select.default and args[0].data_ptr() in self.memory:
            self.reads += 1
            assert torch.isin(args[2], self.allowed).all()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("n_step", [1, 5])
def test_filling_memory_is_never_read(n_step: int, on_host: bool) -> None:
    world = World(2, 3, 6, end_probability=0.02)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 8)
    replay._on_host = on_host
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


def restored(
    world: World, pieces: dict[int, dict[str, Tensor]], state: dict[str, Tensor], **options: Any
) -> ReplayBuffer:
    """Returns a second buffer, poisoned where nothing is restored."""
    twin = World(world.horizon, world.count, world.segments, seed=99)
    replay = ReplayBuffer(twin.memory, world.horizon, **options)
    for tensors in pieces.values():
        replay.restore(tensors)
    replay.load_state_dict(state)
    return replay


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("device", [None, COPY])
@pytest.mark.parametrize("layout", [(4, 3, 5), (1, 2, 300), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("granted", [0, 1])
def test_a_restored_buffer_continues_bitwise_equal(
    layout: tuple[int, int, int], device: str | None, prioritized: bool, granted: int
) -> None:
    for received in (0, 1, layout[2] - 1, layout[2] + 2):
        world = World(*layout)
        replay = ReplayBuffer(world.memory, world.horizon, device=device, prioritized=prioritized)
        advance(world, replay, received)
        for _ in range(granted):
            world.poison(replay.grant(), world.horizon)
        if prioritized and replay.size:
            index = ready_indices(world, replay)
            replay.update_priorities(index, torch.rand(len(index)))
        pieces = dict(replay.segments())
        rows = sorted(row for tensors in pieces.values() for row in tensors["rows"].tolist())
        ready = {index // world.count for index in ready_indices(world, replay).tolist()}
        assert rows == sorted(ready), "what is being filled belongs to another"
        twin = restored(world, pieces, replay.state_dict(), device=device, prioritized=prioritized)
        replay._granted = 0
        assert (twin.steps, twin.size, twin.newest_row) == (replay.steps, replay.size, replay.newest_row)
        for _ in range(3):
            if replay.size:
                generators = (torch.Generator().manual_seed(1) for _ in range(2))
                batches = [each.sample(64, 3, 0.9, next(generators), beta=0.7) for each in (replay, twin)]
                assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))
                errors = torch.rand(64)
                if prioritized:
                    for each, batch in zip((replay, twin), batches, strict=True):
                        each.update_priorities(batch.index, errors)
            advance(world, replay, 1)
            first_row = twin.grant()
            for name, tensor in twin._memory.items():
                tensor[first_row : first_row + world.horizon] = world.memory[name][first_row:][: world.horizon]
            twin.receive(first_row)


@pytest.mark.parametrize("most_pieces", [64, 1000])
def test_unchanged_pieces_are_not_saved_again(most_pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAXIMUM_PIECES", most_pieces)
    world = World(2, 3, 200)
    replay = ReplayBuffer(world.memory, 2)
    pieces: dict[int, dict[str, Tensor]] = {}
    saved_steps = 0
    for segments in (1, 60, 3, 0, 130, 10, 100, 5, 333, 1):
        advance(world, replay, segments)
        changed = dict(replay.segments(saved_steps))
        assert len(changed) <= segments * min(most_pieces, 200) // 200 + 2
        pieces |= changed
        saved_steps = replay.steps
        # A mark after a save is saved with the next one.
        replay.mark_truncated()
        world.restart()
    pieces |= dict(replay.segments(saved_steps))
    assert len(pieces) <= most_pieces
    world.poison(replay.grant(), 2)
    twin = restored(world, pieces, replay.state_dict())
    check(world, twin.gather(ready_indices(world, twin), 5, 0.9), 5, 0.9)


def test_a_missing_piece_is_reported_and_nothing_is_sampled() -> None:
    world = World(4, 2, 5)
    replay = ReplayBuffer(world.memory, 4)
    advance(world, replay, 4)
    pieces = dict(replay.segments())
    del pieces[8]
    twin = ReplayBuffer(World(4, 2, 5).memory, 4)
    for tensors in pieces.values():
        twin.restore(tensors)
    with pytest.raises(DataLoss, match="4 rows"):
        twin.load_state_dict(replay.state_dict())
    assert twin.size == 0


def test_a_state_with_another_layout_is_refused() -> None:
    world = World(4, 2, 6)
    replay = ReplayBuffer(world.memory, 4)
    advance(world, replay, 2)
    for layout in ((4, 2, 5), (4, 3, 6), (8, 2, 3)):
        with pytest.raises(InvalidArgument, match="horizon, replay_capacity"):
            ReplayBuffer(World(*layout).memory, layout[0]).load_state_dict(replay.state_dict())
    with pytest.raises(InvalidArgument, match="prioritized"):
        ReplayBuffer(world.memory, 4, prioritized=True).load_state_dict(replay.state_dict())
    for other in (World(4, 3, 6), World(8, 2, 3), World(4, 2, 6, action_space=CONTINUOUS)):
        with pytest.raises(InvalidArgument, match="environments and their number"):
            ReplayBuffer(other.memory, other.horizon).restore(dict(replay.segments())[0])
    piece = dict(replay.segments())[0]
    with pytest.raises(InvalidArgument, match="environments and their number"):
        ReplayBuffer(World(4, 2, 6).memory, 4).restore(piece | {"observation": piece["observation"].double()})


def test_a_ring_has_at_least_two_whole_segments() -> None:
    for capacity, horizon, count in itertools.product((1, 7, 100, 1000), (1, 3, 16), (1, 4)):
        rows = replay_rows(capacity, horizon, count)
        assert rows % horizon == 0
        assert rows >= 2 * horizon
        assert rows * count >= capacity
        assert rows == 2 * horizon or (rows - horizon) * count < capacity


@pytest.mark.parametrize("rows", [0, 4, 10])
def test_rows_that_are_not_whole_segments_are_refused(rows: int) -> None:
    fields = replay_fields(OBSERVED, DISCRETE, rows, 1)
    memory = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in fields.items()}
    with pytest.raises(InvalidArgument, match=f"{rows} rows"):
        ReplayBuffer(memory, 4)


def test_the_layout_follows_the_spaces() -> None:
    pixels = Space("continuous", (3, 8, 8), torch.uint8)
    fields = replay_fields(pixels, CONTINUOUS, 12, 5)
    assert {name: (each.shape, each.dtype) for name, each in fields.items()} == {
        "observation": ((12, 5, 3, 8, 8), torch.uint8),
        "action": ((12, 5, 2), torch.float32),
        "reward": ((12, 5), torch.float32),
        "terminated": ((12, 5), torch.bool),
        "truncated": ((12, 5), torch.bool),
        FINAL: ((12, 5, 3, 8, 8), torch.uint8),
    }
    assert replay_fields(pixels, DISCRETE, 12, 5)["action"].dtype == torch.int64
    assert replay_fields(pixels, DISCRETE, 12, 5)["action"].shape == (12, 5)


def test_a_buffer_that_does_not_fit_is_refused_with_the_capacity_that_would() -> None:
    fields = replay_fields(OBSERVED, DISCRETE, 50, 2)
    # Per step: 2 x 2 float32 observations, an action of 8 bytes, a reward, two flags; a priority takes 8 bytes.
    assert replay_bytes(fields) == 100 * (2 * 2 * 4 + 8 + 4 + 2)
    assert replay_bytes(fields, prioritized=True) == 3000 + 800
    check_memory(fields, 3000)
    with pytest.raises(
        ResourceExhausted, match=r"replay_capacity.* 100 steps needs 3000 bytes.* 2999 are.* at most 99 "
    ):
        check_memory(fields, 2999)
    with pytest.raises(ResourceExhausted, match="3800 bytes"):
        check_memory(fields, 3000, prioritized=True)


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
            replay._on_host = on_host
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
    replay._on_host = False
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


@pytest.fixture
def mapped_final() -> Iterator[tuple[int, Tensor]]:
    """Maps a file with 60 x 2 observations of one page each; its descriptor shows how many pages are backed."""
    descriptor = os.memfd_create("final_observation")
    os.ftruncate(descriptor, 120 * mmap.PAGESIZE)
    memory = torch.frombuffer(mmap.mmap(descriptor, 120 * mmap.PAGESIZE), dtype=torch.uint8)
    yield descriptor, memory.view(60, 2, mmap.PAGESIZE)
    os.close(descriptor)


def paged_memory(final_observation: Tensor) -> dict[str, Tensor]:
    fields = replay_fields(Space("continuous", (mmap.PAGESIZE,), torch.uint8), DISCRETE, 60, 2)
    return {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in fields.items()} | {
        FINAL: final_observation
    }


@pytest.mark.parametrize("device", [None, COPY])
def test_final_observations_that_were_never_written_are_never_touched(
    mapped_final: tuple[int, Tensor], device: str | None
) -> None:
    descriptor, final_observation = mapped_final

    def pages() -> int:
        return os.fstat(descriptor).st_blocks * 512 // mmap.PAGESIZE

    memory = paged_memory(final_observation)
    replay = ReplayBuffer(memory, 10, device=device)
    for segment in range(6):
        first_row = replay.grant()
        memory["truncated"][first_row + 3, 1] = True
        final_observation[first_row + 3, 1] = segment + 1
        final_observation[first_row + 9] = segment + 1
        replay.receive(first_row)
    assert pages() == 6 * 3
    for n_step in (1, 3):
        replay.sample(1000, n_step, 0.9, torch.Generator().manual_seed(0))
    pieces, state = dict(replay.segments()), replay.state_dict()
    assert pages() == 6 * 3
    final_observation.zero_()
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, 120 * mmap.PAGESIZE)
    twin = ReplayBuffer(paged_memory(final_observation), 10)
    for tensors in pieces.values():
        twin.restore(tensors)
    twin.load_state_dict(state)
    assert pages() == 6 * 3
    assert final_observation[[3, 19, 59], [1, 0, 1], -1].tolist() == [1, 2, 6]


def test_the_buffer_returns_what_collect_wrote() -> None:
    simulator = make("CartPole-v1", 3)
    fields = replay_fields(simulator.observation_space, simulator.action_space, replay_rows(300, 20, 3), 3)
    memory = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in fields.items()}
    policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec((8,)))
    generator = torch.Generator().manual_seed(0)
    policy.initialize(generator)
    replay, lanes = ReplayBuffer(memory, 20), Lanes.start(simulator.reset(1))
    for _ in range(8):
        first_row = replay.grant()
        rows = {name: tensor[first_row : first_row + 20] for name, tensor in memory.items()}
        lanes = collect(simulator, policy, rows, lanes, generator).lanes
        replay.receive(first_row)
    batch = replay.gather(torch.arange(300), 1, 0.99)
    assert batch.discount.eq(0).any()
    going_on = batch.discount > 0
    # The dynamics of the cart: x' = x + 0.02 v.
    x, speed = batch.observation[:, 0], batch.observation[:, 1]
    torch.testing.assert_close(batch.next_observation[going_on, 0], (x + 0.02 * speed)[going_on], rtol=0, atol=1e-6)
    simulator.close()
