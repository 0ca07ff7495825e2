"""Tests that a restored replay memory continues as the stored one, and contains only transitions that were observed."""

from collections.abc import Collection
from typing import Any

import pytest
import torch
from replay_world import COPY, Transition, World, advance, check, ready_indices

from agentpod.experience import replay_view as module
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS, Relayout, ReplayRestorer, ReplayWindow
from agentpod.experience.replay_view import ReplayPiece, ReplayView
from podrace.errors import InvalidArgument


def stored(replay: ReplayBuffer) -> tuple[ReplayWindow, list[ReplayPiece]]:
    """Returns a memory as its files are read, the newest piece first."""
    view = ReplayView.of(replay)
    window = ReplayWindow(view.first_segment, view.end_segment, replay.segment_steps, view.priorities)
    pieces = [piece for first in view.pieces() if (piece := view.read(first))]
    copies = [ReplayPiece.from_file({n: t.clone() for n, t in piece.to_file().items()}, replay) for piece in pieces]
    return ReplayWindow.from_file(window.to_file()), copies[::-1]


def restore(saved: tuple[ReplayWindow, list[ReplayPiece]], replay: ReplayBuffer) -> ReplayRestorer:
    restorer = ReplayRestorer(replay, saved[0])
    for piece in saved[1]:
        if not restorer.add(piece):
            break
    return restorer


def emptied(world: World, **options: Any) -> ReplayBuffer:
    """Returns a buffer of the same layout, poisoned where nothing is restored."""
    return ReplayBuffer(World(world.horizon, world.count, world.segments, seed=99).memory, world.horizon, **options)


@pytest.mark.long
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("device", [None, COPY])
@pytest.mark.parametrize("layout", [(4, 3, 5), (1, 2, 300), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("granted", [0, 1])
def test_a_restored_buffer_continues_bitwise_equal(
    layout: tuple[int, int, int], device: str | None, prioritized: bool, granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 300)
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)
    for received in (1, layout[2] - 1, layout[2] + 2):
        world = World(*layout)
        replay = ReplayBuffer(world.memory, world.horizon, device=device, prioritized=prioritized)
        advance(world, replay, received)
        for _ in range(granted):
            world.poison(replay.grant(), world.horizon)
        if prioritized and replay.size:
            index = ready_indices(world, replay)
            replay.update_priorities(index, torch.rand(len(index)))
        if not replay.size:
            continue
        twin = emptied(world, device=device, prioritized=prioritized)
        restore(stored(replay), twin)
        replay._granted = 0
        replay.mark_truncated()
        assert (twin.steps, twin.size, twin.newest_row) == (replay.steps, replay.size, replay.newest_row)
        for _ in range(3):
            generators = (torch.Generator().manual_seed(1) for _ in range(2))
            batches = [each.sample(64, 3, 0.9, next(generators), beta=0.7) for each in (replay, twin)]
            assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))
            if prioritized:
                for each, batch in zip((replay, twin), batches, strict=True):
                    each.update_priorities(batch.index, torch.linspace(0, 1, 64))
            advance(world, replay, 1)
            first_row = twin.grant()
            for name, tensor in twin._memory.items():
                tensor[first_row : first_row + world.horizon] = world.memory[name][first_row:][: world.horizon]
            twin.receive(first_row)


def test_a_gap_ends_the_windows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * (6 * 22 + 3 * 8))
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)
    world = World(2, 3, 40, end_probability=0.02)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 30)
    window, pieces = stored(replay)
    kept = [piece for piece in pieces if piece.first_segment not in (4, 8, 20)]
    twin = emptied(world)
    restorer = restore((window, kept), twin)
    assert (twin.size, twin.steps) == (18 * 6, 30 * 6)
    assert restorer.unchanged == {24: 28}
    check_observed(world, twin, 5)


def observed(world: World) -> dict[float, tuple[int, int]]:
    """Returns time and lane of each step by its observation, which is unique."""
    return {
        step.observation[0]: (time, lane) for time, steps in enumerate(world.history) for lane, step in enumerate(steps)
    }


def check_observed(world: World, replay: ReplayBuffer, n_step: int) -> list[tuple[int, int]]:
    """Compares every window with the history, in which it may be longer; returns the steps that were restored."""
    places, found = observed(world), []
    first, size = replay._oldest, replay.size
    batch = replay.gather((torch.arange(size) + first) % replay.capacity, n_step, 0.5)
    for at in range(size):
        time, lane = places[float(batch.observation[at, 0])]
        steps = [row[lane] for row in world.history[time : time + n_step]]
        assert batch.action[at] == steps[0].action
        assert any(matches(steps[:length], batch, at) for length in range(1, len(steps) + 1)), (time, lane)
        found.append((time, lane))
    assert len(set(found)) == size
    return found


def matches(steps: list[Transition], batch: Any, at: int) -> bool:
    """Whether a window over exactly these steps is the one at position `at`."""
    if any(step.terminated or step.truncated for step in steps[:-1]):
        return False
    total = sum(step.reward * 0.5**k for k, step in enumerate(steps))
    power = 0.0 if steps[-1].terminated else 0.5 ** len(steps)
    following = batch.next_observation[at].tolist() == steps[-1].left_behind or steps[-1].terminated
    return abs(float(batch.reward[at]) - total) < 1e-5 and float(batch.discount[at]) == power and following


LAYOUTS = [(1, 3, 500), (4, 3, 100), (2, 1, 900), (8, 2, 60), (2, 5, 100), (96, 1, 8)]


@pytest.mark.long
@pytest.mark.parametrize("device", [None, COPY])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_memory_of_another_layout_has_only_transitions_that_were_observed(
    layout: tuple[int, int, int], device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 100 * (6 * 22 + 3 * 8))
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)
    world = World(2, 3, 400)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 530)
    twin = ReplayBuffer(World(*layout, seed=99).memory, layout[0], device=device)
    restore(stored(replay), twin)
    found = check_observed(world, twin, 3)
    # At most one block of each environment, and blocks that do not fill all lanes, are left out.
    rows = max(BLOCK_ROWS, layout[0])
    assert len(found) >= min(twin.capacity, 2400 - rows * (3 + layout[1]))
    newest = sorted(time for time, _ in found)
    assert newest[-1] == len(world.history) - 1
    advance(World(*layout, seed=5), ReplayBuffer(World(*layout).memory, layout[0]), 3)
    assert twin.grant() == twin.end_segment % twin.segments * layout[0]


def test_windows_of_a_memory_of_another_layout_are_rarely_shorter() -> None:
    world = World(2, 3, 400, end_probability=0.0)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 400)
    twin = ReplayBuffer(World(1, 2, 1000, seed=99).memory, 1)
    restore(stored(replay), twin)
    assert float(twin.gather(torch.arange(twin.size), 1, 0.5).discount.min()) == 0.5
    cut = twin._rings["truncated"][-twin.size // 2 :].float().mean()
    assert float(cut) == pytest.approx(1 / BLOCK_ROWS, rel=0.05)


@pytest.mark.parametrize("segments", [5, 9, 30])
def test_the_newest_steps_are_restored_into_a_smaller_memory(segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * (6 * 22 + 3 * 8))
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)
    world = World(2, 3, 20)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 33)
    twin = ReplayBuffer(World(2, 3, segments, seed=99).memory, 2)
    restore(stored(replay), twin)
    assert (twin.size, twin.steps) == (6 * min(20, segments), 33 * 6)
    found = check_observed(world, twin, 3)
    assert min(time for time, _ in found) == 66 - 2 * min(20, segments)


def test_priorities_follow_their_steps_into_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 50 * (6 * 22 + 3 * 8))
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)
    world = World(2, 3, 200)
    replay = ReplayBuffer(world.memory, 2, prioritized=True, priority_exponent=1.0)
    advance(world, replay, 300)
    index = ready_indices(world, replay)
    # Each step's priority is its reward's, so that it can be recognized.
    replay.update_priorities(index, replay._transitions._flat["reward"][index].abs())
    for layout in ((2, 3, 150), (1, 2, 600), (4, 5, 90)):
        twin = ReplayBuffer(World(*layout, seed=99).memory, layout[0], prioritized=True, priority_exponent=1.0)
        restore(stored(replay), twin)
        assert twin.size
        steps = (torch.arange(twin.size) + twin._oldest) % twin.capacity
        rewards = twin._transitions._flat["reward"][steps].abs().double()
        torch.testing.assert_close(twin._priorities.get(steps), rewards + 1e-6, rtol=1e-5, atol=1e-5)
        assert float(twin._priorities.leaves.sum()) == pytest.approx(float((rewards + 1e-6).sum()), rel=1e-4)


def test_steps_without_priorities_get_the_first_priority() -> None:
    world = World(2, 3, 9)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 4)
    twin = emptied(world, prioritized=True)
    restore(stored(replay), twin)
    assert twin._priorities.leaves.tolist() == [1.0] * 24 + [0.0] * 30


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_cleared_buffer_is_as_new(prioritized: bool) -> None:
    world = World(2, 3, 9)
    replay = ReplayBuffer(world.memory, 2, prioritized=prioritized)
    advance(world, replay, 14)
    twin = emptied(world, prioritized=prioritized)
    saved = stored(replay)
    restore(saved, twin)
    assert twin.size
    twin.clear()
    assert (twin.size, twin.steps, twin.newest_row) == (0, 0, -1)
    other = emptied(world, prioritized=prioritized)
    for each in (twin, other):
        each.receive(each.grant())
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    first, second = (
        each.sample(50, 1, 0.9, next(iter([g]))) for each, g in zip((twin, other), generators, strict=True)
    )
    assert torch.equal(first.index, second.index)
    assert torch.equal(first.weight, second.weight)


def test_nothing_is_restored_of_a_memory_that_is_too_short_for_the_layout() -> None:
    world = World(2, 3, 9)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 9)
    twin = ReplayBuffer(World(2, 4, 9, seed=99).memory, 2)
    restore(stored(replay), twin)
    assert twin.size == 0


def test_pieces_beyond_the_window_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * (6 * 22 + 3 * 8))
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)
    world = World(2, 3, 20)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 17)
    window, pieces = stored(replay)
    twin = emptied(world)
    restore((ReplayWindow(6, 17, window.segment_steps), pieces), twin)
    assert (twin.first_segment, twin.end_segment) == (6, 17)
    check(world, twin.gather(ready_indices(world, twin)[:-6], 1, 0.9), 1, 0.9)


MALFORMED: Collection[dict[str, torch.Tensor]] = (
    {},
    {"window": torch.tensor((3, 3, 6))},
    {"window": torch.tensor((-1, 3, 6))},
    {"window": torch.tensor((0, 3, 0))},
    {"window": torch.tensor((0, 3))},
    {"window": torch.tensor((0, 3, 6)), "priorities.leaves": torch.zeros(3, 5), "priorities.maximum": torch.ones(())},
    {"window": torch.tensor((0, 3, 6)), "priorities.leaves": torch.zeros(3, 6)},
)


@pytest.mark.parametrize("file", MALFORMED)
def test_a_malformed_window_is_refused(file: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InvalidArgument, match="malformed"):
        ReplayWindow.from_file(file)


def test_pieces_that_do_not_fit_their_memory_are_refused() -> None:
    pieces = []
    for horizon, count in ((2, 3), (3, 2)):
        world = World(horizon, count, 9, end_probability=0.0)
        replay = ReplayBuffer(world.memory, horizon)
        advance(world, replay, 1)
        pieces += stored(replay)[1]
    restorer = ReplayRestorer(ReplayBuffer(World(4, 1, 9).memory, 4), ReplayWindow(0, 1, 8))
    with pytest.raises(InvalidArgument, match="from segment 0 on has 2 rows of 3 environments in a segment"):
        restorer.add(pieces[0])
    relayout = Relayout(4, 1)
    relayout.add(pieces[0], None)
    with pytest.raises(InvalidArgument, match="has 2 environments, the piece that continues it has 3"):
        relayout.add(pieces[1], None)
