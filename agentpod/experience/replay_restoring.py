"""Restores a replay memory from its stored pieces, the newest first, until it is full.

Pieces may be missing: the last step before a gap is then marked as truncated, so that no n-step window extends over it.
A memory of another number of environments or another horizon is laid out again: each environment's steps are cut into
blocks, and blocks of different environments follow each other in one lane. The last step of a block is marked as
truncated, with the observation that really followed it. Every restored transition is therefore one that was observed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, drop_oldest, written_finals
from agentpod.experience.replay_view import ReplayPiece
from podrace.errors import DataLoss, InvalidArgument

BLOCK_ROWS = 64
"""Rows of a block of one environment's steps, unless the horizon is longer."""
PRIORITY = "priority"


@dataclass(frozen=True)
class ReplayWindow:
    """Which segments a stored replay memory had, and their priorities."""

    first_segment: int
    """Number of the oldest segment."""
    end_segment: int
    """Number of the segment after the newest."""
    segment_steps: int
    """Environment steps of a segment."""
    priorities: Mapping[str, Tensor] = field(default_factory=dict)
    """See `ReplayBuffer.priorities`; empty if the memory had none."""

    @property
    def size(self) -> int:
        """Environment steps."""
        return (self.end_segment - self.first_segment) * self.segment_steps

    def to_file(self) -> dict[str, Tensor]:
        """Returns the tensors of the window's file."""
        numbers = torch.tensor((self.first_segment, self.end_segment, self.segment_steps))
        return {"window": numbers, **{f"priorities.{name}": tensor for name, tensor in self.priorities.items()}}

    @classmethod
    def from_file(cls, tensors: Mapping[str, Tensor]) -> "ReplayWindow":
        """Returns the window of a file.

        Raises:
            InvalidArgument: The file does not describe a window.
        """
        numbers = tensors.get("window", torch.empty(0))
        first, end, segment_steps = (int(number) for number in numbers) if numbers.shape == (3,) else (0, 0, 0)
        prefix = "priorities."
        saved = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        leaves, maximum = saved.get("leaves"), saved.get("maximum")
        fits = leaves is None or (
            leaves.shape == (end - first, segment_steps) and maximum is not None and maximum.shape == ()
        )
        if not (0 <= first < end and segment_steps > 0 and fits):
            raise InvalidArgument("the state of the saved replay memory is malformed")
        return cls(first, end, segment_steps, saved)

    def check(self, piece: ReplayPiece) -> None:
        """Raises InvalidArgument unless the segments of a piece are as large as those of the window."""
        if piece.horizon * piece.count != self.segment_steps:
            raise InvalidArgument(
                f"the piece of the saved replay memory from segment {piece.first_segment} on has {piece.horizon} rows"
                f" of {piece.count} environments in a segment; its memory has {self.segment_steps} steps in a segment"
            )

    def priorities_of(self, piece: ReplayPiece) -> Tensor | None:
        """Returns the priorities of a piece's segments [segments, T N], if there are any."""
        if "leaves" not in self.priorities:
            return None
        return self.priorities["leaves"][piece.first_segment - self.first_segment :][: _segments(piece)]


class ReplayRestorer:
    """Restores the pieces of one stored memory into an empty replay buffer.

    restorer = ReplayRestorer(replay, window)
    for piece in newest_first:
        if not restorer.add(piece):
            break
    """

    def __init__(self, replay: ReplayBuffer, window: ReplayWindow) -> None:
        """Starts with nothing restored.

        Args:
            replay: An empty replay buffer.
            window: The window of the stored memory.
        """
        self._replay, self._window = replay, window
        self._relayout = Relayout(replay.horizon, replay.count)
        self._later: int | None = None
        self.unchanged: dict[int, int] = {}
        """Of the pieces that are in the buffer as they were stored: the number of the first segment, and of the one
        after the last."""
        end = window.end_segment * window.segment_steps // replay.segment_steps
        replay.start_at(end, window.priorities.get("maximum") if replay.prioritized else None)

    def add(self, piece: ReplayPiece) -> bool:
        """Restores the next older piece; returns whether there is room for another one.

        Raises:
            InvalidArgument: The segments of the piece differ from those of the memory.
            DataLoss: A number of the piece is not finite.
        """
        self._window.check(piece)
        _check_finite(piece)
        replay, window, stored_first = self._replay, self._window, piece.first_segment
        piece = _without(piece, window.first_segment - stored_first)
        if not _segments(piece):
            return bool(replay.room)
        ends_run = self._later != piece.end_segment
        self._later = piece.first_segment
        if ends_run:
            _mark_truncated(piece)
            self._relayout.end_run()
        priorities = window.priorities_of(piece) if replay.prioritized else None
        if (piece.horizon, piece.count) == (replay.horizon, replay.count):
            if not ends_run and replay.first_segment == piece.end_segment:
                self.unchanged[stored_first] = piece.end_segment
            self._prepend(piece.tensors, priorities)
        else:
            for tensors in self._relayout.add(piece, priorities):
                found = tensors.pop(PRIORITY, None)
                self._prepend(tensors, None if found is None else found.view(-1, replay.segment_steps))
        return bool(replay.room)

    def _prepend(self, tensors: dict[str, Tensor], priorities: Tensor | None) -> None:
        replay = self._replay
        excess = len(tensors["reward"]) // replay.horizon - replay.room
        if excess > 0:
            tensors = drop_oldest(tensors, excess * replay.horizon, replay.horizon)
            priorities = None if priorities is None else priorities[excess:]
        replay.prepend(tensors, priorities)


class Relayout:
    """Changes the number of environments and the horizon of consecutive pieces, which are added newest first."""

    def __init__(self, horizon: int, count: int) -> None:
        """Sets the new layout.

        Args:
            horizon: Rows of a segment.
            count: Environments.
        """
        self._horizon, self._count = horizon, count
        self._rows = horizon * max(1, BLOCK_ROWS // horizon)
        self._pending: dict[str, Tensor] | None = None
        self._blocks: list[dict[str, Tensor]] = []

    def end_run(self) -> None:
        """Drops steps that are too few for a block, because the next piece does not continue them."""
        self._pending = None

    def add(self, piece: ReplayPiece, priorities: Tensor | None) -> list[dict[str, Tensor]]:
        """Returns the segments that are complete now, newest first, packed, with their priorities [L, N] if any.

        Raises:
            InvalidArgument: The piece has another number of environments than the one that continues it.
        """
        if self._pending is not None:
            check_lanes(piece.first_segment, piece.count, self._pending["reward"].shape[1])
        dense = dense_steps(piece)
        if priorities is not None:
            dense[PRIORITY] = priorities.reshape(-1, piece.count)
        if self._pending is not None:
            dense = {name: torch.cat((tensor, self._pending[name])) for name, tensor in dense.items()}
        rest = len(dense["reward"]) % self._rows
        for first in range(len(dense["reward"]) - self._rows, rest - 1, -self._rows):
            block = {name: tensor[first : first + self._rows] for name, tensor in dense.items()}
            self._blocks += [{name: tensor[:, lane] for name, tensor in block.items()} for lane in range(piece.count)]
        self._pending = {name: tensor[:rest] for name, tensor in dense.items()}
        return self._complete()

    def _complete(self) -> list[dict[str, Tensor]]:
        found = []
        while len(self._blocks) >= self._count:
            lanes, self._blocks = self._blocks[: self._count], self._blocks[self._count :]
            tensors = {name: torch.stack([lane[name] for lane in lanes], 1) for name in lanes[0]}
            tensors["truncated"][-1] |= ~tensors["terminated"][-1]
            tensors[FINAL] = tensors[FINAL][written_finals(tensors["truncated"], self._horizon)]
            found.append(tensors)
        return found


def check_lanes(first_segment: int, lanes: int, next_lanes: int) -> None:
    """Raises InvalidArgument if a piece cannot be joined with the next one: they differ in their environments.

    Args:
        first_segment: Number of the first segment of the piece, for the message.
        lanes: Environments of the piece.
        next_lanes: Environments of the piece that continues it.
    """
    if lanes != next_lanes:
        raise InvalidArgument(
            f"the piece of the saved replay memory from segment {first_segment} on has {lanes} environments, the piece"
            f" that continues it has {next_lanes}"
        )


def _check_finite(piece: ReplayPiece) -> None:
    for name, tensor in piece.tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DataLoss(
                f"the piece of the saved replay memory from segment {piece.first_segment} on has numbers in {name} that"
                " are not finite",
                reason="ERROR_REASON_NON_FINITE",
            )


def _segments(piece: ReplayPiece) -> int:
    return piece.end_segment - piece.first_segment


def _without(piece: ReplayPiece, segments: int) -> ReplayPiece:
    """Returns a piece without its first segments, which are not in the window."""
    if segments <= 0:
        return piece
    segments = min(segments, _segments(piece))
    tensors = drop_oldest(piece.tensors, segments * piece.horizon, piece.horizon)
    return replace(piece, first_segment=piece.first_segment + segments, tensors=tensors)


def _mark_truncated(piece: ReplayPiece) -> None:
    """Marks the last row as truncated. Its final observations are stored in any case."""
    piece.tensors["truncated"][-1] |= ~piece.tensors["terminated"][-1]


def dense_steps(piece: ReplayPiece) -> dict[str, Tensor]:
    """Returns the steps with the observation after each one, [L, N, ...], in place of the written final ones."""
    observation = piece.tensors["observation"]
    following = torch.cat((observation[1:], observation[-1:]))
    # Where a step terminated, what follows is the first observation of the next episode, which no window reads.
    following[written_finals(piece.tensors["truncated"], piece.horizon)] = piece.tensors[FINAL]
    return piece.tensors | {FINAL: following}
