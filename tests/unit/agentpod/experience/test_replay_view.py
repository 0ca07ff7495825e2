"""Tests that a replay memory is divided into pieces that do not change, and copied while it is filled."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from replay_world import CONTINUOUS, COPY, World, advance, ready_indices
from torch import Tensor

from agentpod.experience import replay_view as module
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL
from agentpod.experience.replay_view import SEGMENTS, ReplayPiece, ReplayView
from podrace.errors import InvalidArgument
from podrace.tensor_transport.codec import encode


@pytest.fixture(autouse=True)
def five_segments_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    # A segment of World(2, 3, ...) has 6 steps of 22 bytes, and 3 final observations of 8 bytes.
    monkeypatch.setattr(module, "PIECE_BYTES", 5 * (6 * 22 + 3 * 8))
    monkeypatch.setattr(module, "MINIMUM_PIECES", 1)


def files_of(view: ReplayView) -> dict[int, bytes]:
    found = {first: view.read(first) for first in view.pieces()}
    return {first: encode(piece.to_file(), {}) for first, piece in found.items() if piece}


def test_pieces_are_aligned_to_the_numbers_of_the_segments() -> None:
    world = World(2, 3, 12)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 18)
    view = ReplayView.of(replay)
    assert (view.piece_segments, view.first_segment, view.end_segment, view.size) == (5, 6, 18, 72)
    assert list(view.pieces()) == [5, 10, 15]
    pieces = [view.read(first) for first in view.pieces()]
    assert [(piece.first_segment, piece.end_segment) for piece in pieces if piece] == [(6, 10), (10, 15), (15, 18)]
    assert [view.is_final(first) for first in view.pieces()] == [True, True, False]
    assert [view.steps_between(first, first + 5) for first in view.pieces()] == [24, 30, 18]


def test_the_number_of_pieces_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAXIMUM_PIECES", 3)
    world = World(2, 3, 100)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 1)
    assert ReplayView.of(replay).piece_segments == 34


def test_a_small_memory_has_many_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MINIMUM_PIECES", 64)
    monkeypatch.setattr(module, "PIECE_BYTES", 2**20)
    for segments, size in ((20, 1), (64, 1), (65, 2), (200, 4)):
        world = World(2, 3, segments)
        replay = ReplayBuffer(world.memory, 2)
        advance(world, replay, 1)
        assert ReplayView.of(replay).piece_segments == size


@pytest.mark.parametrize("device", [None, COPY])
def test_a_final_piece_never_changes(device: str | None) -> None:
    world = World(2, 3, 23)
    replay = ReplayBuffer(world.memory, 2, device=device)
    seen: dict[int, bytes] = {}
    for segments in (1, 5, 4, 1, 13, 8, 30):
        advance(world, replay, segments)
        replay.mark_truncated()
        world.restart()
        view = ReplayView.of(replay)
        for first, file in files_of(view).items():
            if first >= view.first_segment and view.is_final(first):
                assert seen.setdefault(first, file) == file


class GrantingWhileCopied(dict[str, Tensor]):
    """Rings that are granted to a worker, which overwrites them, while they are copied."""

    def __init__(self, rings: Mapping[str, Tensor]) -> None:
        super().__init__(rings)
        self.replay: ReplayBuffer | None = None
        self.world: World | None = None

    def items(self) -> Any:
        for name, ring in super().items():
            yield name, ring
            if self.replay and self.world:
                replay, self.replay = self.replay, None
                self.world.poison(replay.grant(), 2)


@pytest.mark.parametrize(("first", "end", "copied"), [(5, 10, 7), (5, 7, 7), (7, 11, 7), (3, 6, 6)])
def test_segments_that_are_granted_while_they_are_copied_are_dropped(first: int, end: int, copied: int) -> None:
    world = World(2, 3, 12)
    rings = GrantingWhileCopied(world.memory)
    replay = ReplayBuffer(rings, 2)
    advance(world, replay, 18)
    assert replay.first_segment == 6
    expected = replay.read(copied, end)[1]
    rings.replay, rings.world = replay, world
    found_first, found = replay.read(first, end)
    assert (found_first, replay.first_segment) == (copied, 7)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_view_does_not_contain_what_was_received_after_it() -> None:
    world = World(2, 3, 12)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 7)
    view = ReplayView.of(replay)
    before = files_of(view)
    advance(world, replay, 4)
    assert files_of(view) == before
    advance(world, replay, 6)
    assert list(files_of(view)) == [5]
    advance(world, replay, 2)
    assert files_of(view) == {}


def test_the_priorities_of_a_view_are_those_of_its_moment() -> None:
    world = World(2, 3, 4)
    replay = ReplayBuffer(world.memory, 2, prioritized=True)
    assert ReplayView.of(ReplayBuffer(world.memory, 2)).priorities == {}
    advance(world, replay, 6)
    replay.update_priorities(ready_indices(world, replay), torch.rand(24))
    view = ReplayView.of(replay)
    # Segments 2 and 3 are the second half of the ring, 4 and 5 the first one.
    expected = replay._priorities.leaves.view(4, 6)[[2, 3, 0, 1]].clone()
    replay.update_priorities(ready_indices(world, replay), 10 * torch.rand(24))
    assert torch.equal(view.priorities["leaves"], expected)
    assert float(view.priorities["maximum"]) >= float(expected.max())


def broken(name: str, file: dict[str, Tensor]) -> dict[str, Tensor]:
    match name:
        case "no numbers":
            return {name: tensor for name, tensor in file.items() if name != SEGMENTS}
        case "negative":
            return file | {SEGMENTS: torch.tensor((-1, 2, 3))}
        case "half a segment":
            return {name: tensor if name == SEGMENTS else tensor[1:] for name, tensor in file.items()}
        case "other lanes":
            return file | {"reward": torch.zeros(10, 4)}
        case "fewer finals":
            return file | {FINAL: file[FINAL][1:]}
        case "other type":
            return file | {"observation": file["observation"].double()}
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name", ["no numbers", "negative", "half a segment", "other lanes", "fewer finals", "other type"]
)
def test_a_file_that_is_not_a_piece_is_refused(name: str) -> None:
    world = World(2, 3, 12)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 6)
    piece = ReplayView.of(replay).read(0)
    assert piece
    file = piece.to_file()
    assert ReplayPiece.from_file(file, replay).first_segment == 0
    with pytest.raises(InvalidArgument):
        ReplayPiece.from_file(broken(name, file), replay)


def test_a_piece_of_other_spaces_is_refused() -> None:
    world = World(2, 3, 12)
    replay = ReplayBuffer(world.memory, 2)
    advance(world, replay, 6)
    piece = ReplayView.of(replay).read(0)
    assert piece
    with pytest.raises(InvalidArgument, match="other spaces"):
        ReplayPiece.from_file(piece.to_file(), ReplayBuffer(World(2, 3, 4, CONTINUOUS).memory, 2))
