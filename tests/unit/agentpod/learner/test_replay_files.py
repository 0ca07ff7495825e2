"""Tests that a replay memory is stored incrementally, within its limit, and restored from what can be read."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_world import CONTINUOUS, World, advance, check, ready_indices

from agentpod.experience import replay_view
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL
from agentpod.experience.replay_view import SEGMENTS, ReplayView
from agentpod.learner.replay_files import ReplayFiles, StoredReplay
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import read_part, store_part
from podrace.checkpoint_store.replay_parts import STATE, first_segment_of
from podrace.errors import ResourceExhausted, Unavailable
from podrace.tensor_transport.codec import decode, encode

UNLIMITED = 2**40
SEGMENT_BYTES = 6 * 22 + 3 * 8


@pytest.fixture(autouse=True)
def five_segments_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_view, "PIECE_BYTES", 5 * SEGMENT_BYTES)
    monkeypatch.setattr(replay_view, "MINIMUM_PIECES", 1)
    monkeypatch.setattr(replay_view, "SMALLEST_SAMPLE_STEPS", 60)


class CountingStore(FolderStore):
    """A store that counts what is put."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.puts: list[str] = []
        self.full_after = 10**9

    def put_object(self, data: bytes) -> str:
        if len(self.puts) >= self.full_after:
            raise ResourceExhausted("the store is full")
        self.puts.append(super().put_object(data))
        return self.puts[-1]


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path)


def new_replay(segments: int = 40, seed: int = 0, count: int = 3) -> tuple[World, ReplayBuffer]:
    # Without truncated episodes every segment has the same size.
    world = World(2, count, segments, seed=seed, end_probability=0.0)
    return world, ReplayBuffer(world.memory, 2)


def publish(files: ReplayFiles, replay: ReplayBuffer) -> StoredReplay:
    stored = files.store(ReplayView.of(replay))
    files.published(stored)
    return stored


def test_only_the_pieces_that_changed_since_the_last_checkpoint_are_stored(store: CountingStore) -> None:
    world, replay = new_replay()
    files = ReplayFiles(store, UNLIMITED)
    for segments in (1, 12, 0, 5, 20, 33):
        first = replay.end_segment
        advance(world, replay, segments)
        store.puts.clear()
        stored = publish(files, replay)
        assert (stored.steps, stored.memory_steps) == (replay.size, replay.size)
        # New pieces, the one that was incomplete or had the newest segment before, and the state.
        assert len(store.puts) <= -(-segments // 5) + 2 + (first % 5 == 0)
        assert len(stored.parts) == len(ReplayView.of(replay).pieces()) + 1


def test_what_was_stored_but_not_published_is_stored_again(store: CountingStore) -> None:
    world, replay = new_replay()
    files = ReplayFiles(store, UNLIMITED)
    advance(world, replay, 12)
    files.store(ReplayView.of(replay))
    store.puts.clear()
    publish(files, replay)
    assert len(store.puts) == 3 + 1


def test_a_restored_memory_stores_only_what_changes(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 53)
    stored = publish(ReplayFiles(store, UNLIMITED), replay)
    _, child = new_replay(seed=9)
    files = ReplayFiles(store, UNLIMITED)
    assert files.restore(stored.parts, child) == replay.size == child.size
    store.puts.clear()
    again = publish(files, child)
    # The incomplete oldest piece, the newest one, whose last step is marked as truncated, and the state.
    assert len(store.puts) == 3
    assert len({part.digest for part in again.parts} - {part.digest for part in stored.parts}) <= 2


def test_pieces_with_overwritten_steps_are_listed_if_they_were_stored_before(store: CountingStore) -> None:
    world, replay = new_replay()
    files = ReplayFiles(store, UNLIMITED)
    advance(world, replay, 40)
    publish(files, replay)
    advance(world, replay, 7)
    view = ReplayView.of(replay)
    advance(world, replay, 13)
    stored = files.store(view)
    assert stored.steps == view.size
    _, twin = new_replay(seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(stored.parts, twin) == view.size


def test_steps_that_are_overwritten_before_they_are_stored_are_missing_and_not_counted(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 40)
    view = ReplayView.of(replay)
    advance(world, replay, 7)
    stored = ReplayFiles(store, UNLIMITED).store(view)
    assert (stored.steps, stored.memory_steps) == (33 * 6, 40 * 6)
    twin_world, twin = new_replay(seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(stored.parts, twin) == 33 * 6
    assert (twin.steps, twin_world.count) == (240, 3)


def test_of_a_memory_above_the_limit_a_sample_is_stored(store: CountingStore) -> None:
    world, replay = new_replay(segments=200)
    limit_bytes = 16 * 1024
    files = ReplayFiles(store, limit_bytes)
    for segments in (20, 50, 100, 200):
        advance(world, replay, segments)
        store.puts.clear()
        stored = publish(files, replay)
        size = sum(part.size_bytes for part in stored.parts)
        assert size <= limit_bytes
        assert stored.memory_steps == replay.size
        assert size > limit_bytes * 0.8 or stored.steps == replay.size
        assert len(store.puts) <= segments / 5 + 3
        _, twin = new_replay(segments=200, seed=9)
        assert ReplayFiles(store, UNLIMITED).restore(stored.parts, twin) == stored.steps
        assert twin.steps == replay.steps
        assert torch.isfinite(twin.sample(500, 3, 0.9, torch.Generator().manual_seed(0)).next_observation).all()


def test_a_sample_that_is_too_small_to_learn_from_is_not_stored(store: CountingStore) -> None:
    world, replay = new_replay(segments=200)
    advance(world, replay, 100)
    assert publish(ReplayFiles(store, 2 * 1024), replay) == StoredReplay(memory_steps=600)
    store.puts.clear()
    assert publish(ReplayFiles(store, 1024), replay) == StoredReplay(memory_steps=600)
    assert not store.puts


def test_an_agent_starts_empty_if_too_little_of_its_memory_is_left(store: CountingStore) -> None:
    world, replay = new_replay(segments=200)
    advance(world, replay, 100)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    pieces = [part for part in parts if part.name != STATE]
    for part in pieces[1:-2]:
        store.delete_object(part.digest, 0.0)
    _, twin = new_replay(segments=200, seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == 90
    store.delete_object(pieces[0].digest, 0.0)
    store.delete_object(pieces[-1].digest, 0.0)
    _, twin = new_replay(segments=200, seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == twin.size == twin.steps == 0


def test_a_short_memory_is_whole_and_restored(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 2)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    _, twin = new_replay(seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == 12


def test_a_limit_of_0_stores_nothing(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 9)
    assert publish(ReplayFiles(store, 0), replay) == StoredReplay(memory_steps=54)
    assert not store.puts


def test_a_full_store_loses_the_memory_but_not_the_checkpoint(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 30)
    files = ReplayFiles(store, UNLIMITED)
    store.full_after = 3
    assert publish(files, replay) == StoredReplay(memory_steps=180)
    store.full_after = 10**9
    assert publish(files, replay).steps == 180


def test_missing_and_damaged_pieces_are_left_out(store: CountingStore, tmp_path: Path) -> None:
    world, replay = new_replay()
    advance(world, replay, 25)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    pieces = [part for part in parts if part.name != STATE]
    store.delete_object(pieces[1].digest, 0.0)
    damaged = next(tmp_path.rglob(pieces[3].digest))
    damaged.write_bytes(b"damaged")
    twin_world, twin = new_replay(seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == 15 * 6
    assert twin.steps == 150
    assert twin_world.memory["reward"][:20].isnan().all()


def test_a_memory_without_its_state_starts_empty(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 25)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    store.delete_object(next(part.digest for part in parts if part.name == STATE), 0.0)
    _, twin = new_replay(seed=9)
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == twin.steps == 0


@pytest.mark.parametrize("fault", ["final observations", "environments", "that are not finite"])
def test_a_memory_with_a_malformed_piece_starts_empty(store: CountingStore, fault: str, log_lines: Any) -> None:
    world, replay = new_replay()
    advance(world, replay, 24)
    parts = list(publish(ReplayFiles(store, UNLIMITED), replay).parts)
    newest = max(range(len(parts)), key=lambda at: first_segment_of(parts[at].name) if parts[at].name != STATE else -1)
    tensors = decode(read_part(store, parts[newest]))[0]
    if fault == "environments":
        finals = tensors[FINAL].unflatten(0, (-1, 3))[:, 1:].flatten(0, 1)
        narrow = {name: tensor[:, 1:] for name, tensor in tensors.items() if name not in (SEGMENTS, FINAL)}
        tensors = narrow | {FINAL: finals, SEGMENTS: tensors[SEGMENTS] - torch.tensor((0, 0, 1))}
    elif fault == "that are not finite":
        tensors[FINAL][1, 0] = math.inf
    else:
        tensors[FINAL] = tensors[FINAL][:1]
    parts[newest] = store_part(store, parts[newest].name, encode(tensors, {}))
    _, twin = new_replay(seed=9, count=2)
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == twin.size == 0
    (line,) = [line for line in log_lines if line["event"] == "the replay memory starts empty"]
    assert fault in line["error"]
    assert "from segment 20 on has" in line["error"]


def test_a_memory_of_other_spaces_starts_empty(store: CountingStore) -> None:
    world, replay = new_replay()
    advance(world, replay, 25)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    other = ReplayBuffer(World(2, 3, 40, CONTINUOUS).memory, 2)
    assert ReplayFiles(store, UNLIMITED).restore(parts, other) == other.steps == other.size == 0
    assert other.grant() == 0


def test_a_memory_of_another_number_of_environments_is_laid_out_again(store: CountingStore) -> None:
    world, replay = new_replay(segments=200)
    advance(world, replay, 200)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    _, twin = new_replay(segments=400, seed=9, count=2)
    files = ReplayFiles(store, UNLIMITED)
    assert files.restore(parts, twin) >= 0.9 * replay.size
    store.puts.clear()
    assert publish(files, twin).steps == twin.size
    assert len(store.puts) == len(ReplayView.of(twin).pieces()) + 1


def test_what_is_restored_agrees_with_the_history(store: CountingStore) -> None:
    world = World(2, 3, 40)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 67)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    twin = ReplayBuffer(World(2, 3, 40, seed=9).memory, 2)
    ReplayFiles(store, UNLIMITED).restore(parts, twin)
    world.restart()
    check(world, twin.gather(ready_indices(world, twin), 3, 0.9), 3, 0.9)


def test_a_memory_of_another_tournament_is_stored_again(tmp_path: Path) -> None:
    whole = FolderStore(tmp_path)
    world, replay = new_replay()
    advance(world, replay, 12)
    inherited = ReplayFiles(whole.within("ant-x1"), UNLIMITED).store(ReplayView.of(replay))
    for view, again in ((whole.within("ant-x1"), False), (whole.within("ant-y2", "ant-x1"), True)):
        _, child = new_replay()
        files = ReplayFiles(view, UNLIMITED)
        assert files.restore(inherited.parts, child) == replay.size
        stored = files.store(ReplayView.of(child))
        assert all(view.has_object(part.digest) for part in stored.parts)
        assert {one.tournament_id for one in whole.list_objects()} == ({"ant-x1", "ant-y2"} if again else {"ant-x1"})


def test_a_memory_whose_restoring_the_store_interrupts_is_empty_so_that_it_can_be_repeated(
    store: CountingStore,
) -> None:
    world, replay = new_replay()
    advance(world, replay, 20)
    parts = publish(ReplayFiles(store, UNLIMITED), replay).parts
    _, twin = new_replay()
    reads, get_object = 0, store.get_object

    def interrupted(name: str, largest_bytes: int | None = None) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3:
            raise Unavailable("the server is away")
        return get_object(name, largest_bytes)

    store.get_object = interrupted  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        ReplayFiles(store, UNLIMITED).restore(parts, twin)
    assert twin.size == twin.steps == 0
    assert ReplayFiles(store, UNLIMITED).restore(parts, twin) == replay.size
