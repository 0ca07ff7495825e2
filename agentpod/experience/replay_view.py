"""Divides a replay memory, as it is at one moment, into pieces of whole segments that are stored one by one.

Pieces are aligned to the numbers of the segments: piece k has the segments from k S to before (k + 1) S. A complete
piece therefore never changes and is stored once, however often the memory is stored.
"""

from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, written_finals
from podrace.errors import InvalidArgument

PIECE_BYTES = 2**20
"""Largest size of a piece in bytes, unless a single segment is larger or there would be too many pieces."""
MINIMUM_PIECES = 64
"""Minimum pieces of a full replay memory, if it has as many segments: a sample consists of whole pieces."""
MAXIMUM_PIECES = 512
"""Maximum pieces of a full replay memory."""
SMALLEST_SAMPLE_STEPS = 8_000
"""Environment steps of the smallest sample that is worth learning from. On Pendulum, SAC agents that started from 2,400
of 10,000 steps lost more than agents that warmed up again; those with 9,900 of 40,000 lost nothing measurable."""
WHOLE_SHARE = 0.9
"""Share of a memory above which it counts as whole."""
SEGMENTS = "segments"
"""Tensor of a piece: number of its first segment, rows of a segment, environments."""


def is_useful(steps: int, memory_steps: int) -> bool:
    """Whether `steps` environment steps of a memory that had `memory_steps` are better than an empty memory."""
    return steps >= SMALLEST_SAMPLE_STEPS or (steps > 0 and steps >= WHOLE_SHARE * memory_steps)


@dataclass(frozen=True)
class ReplayView:
    """The segments of a replay memory that were READY at one moment, and a copy of their priorities.

    view = ReplayView.of(replay)
    for first in view.pieces():
        piece = view.read(first)     # in another thread, while the training continues
    """

    replay: ReplayBuffer
    """The replay memory itself, which may continue to be filled."""
    first_segment: int
    """Number of the oldest segment."""
    end_segment: int
    """Number of the segment after the newest."""
    priorities: dict[str, Tensor] = field(default_factory=dict)
    """See `ReplayBuffer.priorities`."""

    @classmethod
    def of(cls, replay: ReplayBuffer) -> "ReplayView":
        """Returns the view of this moment; no segment may be granted or received meanwhile."""
        return cls(replay, replay.first_segment, replay.end_segment, replay.priorities())

    @property
    def size(self) -> int:
        """Environment steps of the view."""
        return (self.end_segment - self.first_segment) * self.replay.segment_steps

    @property
    def piece_segments(self) -> int:
        """S, segments of a complete piece."""
        segments = self.replay.segments
        most = min(PIECE_BYTES // self.segment_bytes, ceil(segments / MINIMUM_PIECES))
        return max(1, most, ceil(segments / MAXIMUM_PIECES))

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment without truncated episodes, in which only the last row has final observations."""
        replay = self.replay
        sizes = {name: element.itemsize * torch.Size(shape).numel() for name, (element, shape) in replay.fields.items()}
        return replay.segment_steps * (sum(sizes.values()) - sizes[FINAL]) + replay.count * sizes[FINAL]

    def pieces(self) -> range:
        """Returns the numbers of the first segments of all pieces, oldest first. The first and last may be partial."""
        size = self.piece_segments
        return range(self.first_segment // size * size, self.end_segment, size)

    def steps_between(self, first_segment: int, end_segment: int) -> int:
        """Returns how many environment steps of these segments belong to the view."""
        segments = min(end_segment, self.end_segment) - max(first_segment, self.first_segment)
        return max(0, segments) * self.replay.segment_steps

    def is_final(self, first_segment: int) -> bool:
        """Whether a piece will not change any more: it has all its segments, and not the newest of the view.

        The last row of the newest segment may still be marked as truncated.
        """
        return first_segment + self.piece_segments < self.end_segment

    def read(self, first_segment: int) -> "ReplayPiece | None":
        """Copies a piece, without the segments that were overwritten since; None if nothing is left of it."""
        first = max(first_segment, self.first_segment)
        end = min(first_segment + self.piece_segments, self.end_segment)
        first, tensors = self.replay.read(first, end)
        return ReplayPiece(first, self.replay.horizon, tensors) if first < end else None


@dataclass(frozen=True)
class ReplayPiece:
    """Consecutive segments of a replay memory."""

    first_segment: int
    """Number of the first segment."""
    horizon: int
    """Rows of a segment."""
    tensors: dict[str, Tensor]
    """The steps as `agentpod.experience.replay_layout.pack` returns them."""

    @property
    def count(self) -> int:
        """Environments."""
        return self.tensors["reward"].shape[1]

    @property
    def end_segment(self) -> int:
        """Number of the segment after the last one."""
        return self.first_segment + len(self.tensors["reward"]) // self.horizon

    def to_file(self) -> dict[str, Tensor]:
        """Returns the tensors of the piece's file."""
        return {SEGMENTS: torch.tensor((self.first_segment, self.horizon, self.count)), **self.tensors}

    @classmethod
    def from_file(cls, tensors: dict[str, Tensor], replay: ReplayBuffer) -> "ReplayPiece":
        """Returns the piece of a file, to be restored into `replay`.

        Raises:
            InvalidArgument: The file is not a piece of a replay memory, or one of other spaces.
        """
        found = dict(tensors)
        numbers = found.pop(SEGMENTS, torch.empty(0))
        fields = {name: (tensor.dtype, tuple(tensor.shape[2 - (name == FINAL) :])) for name, tensor in found.items()}
        if fields != replay.fields or numbers.shape != (3,):
            raise InvalidArgument("the saved replay memory is of an environment with other spaces")
        first, horizon, count = (int(number) for number in numbers)
        rows, shape = len(found["reward"]), tuple(found["reward"].shape[:2])
        whole = first >= 0 and min(horizon, rows, count) > 0 and rows % horizon == 0 and shape == (rows, count)
        if not whole or any(tensor.shape[:2] != shape for name, tensor in found.items() if name != FINAL):
            raise InvalidArgument("a piece of the saved replay memory does not consist of whole segments")
        stored, written = len(found[FINAL]), int(written_finals(found["truncated"], horizon).sum())
        if stored != written:
            raise InvalidArgument(
                f"the piece of the saved replay memory from segment {first} on has {stored} final observations;"
                f" {written} were written"
            )
        return cls(first, horizon, found)
