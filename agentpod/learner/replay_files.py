"""Stores the replay memory of an agent as optional parts of its checkpoints, and restores it.

A part is one piece of consecutive segments (agentpod.experience.replay_view). A piece that did not change since the
last checkpoint was published is listed again, and neither read nor stored. Pieces are copied while the training
continues. Steps that are overwritten before they were copied are missing from the checkpoint, whose manifest states
which steps it has.
An agent whose parts are damaged, missing or of another environment starts with what can be read, or with an empty
memory and warms up again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import torch

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import ReplayRestorer, ReplayWindow
from agentpod.experience.replay_view import ReplayPiece, ReplayView, is_useful
from agentpod.learner import released_replay
from agentpod.liveness.activity import Activity
from agentpod.storage_waits import STORAGE_FAULTS
from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.publish import read_part, store_part
from podrace.checkpoint_store.replay_parts import STATE, first_segment_of, piece_name, select
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss, InvalidArgument, NotFound, ResourceExhausted
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_PREPARING
from podrace.tensor_transport.codec import decode, encode

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StoredPiece:
    """A piece in the store."""

    part: Part
    """The part that a manifest lists."""
    first_segment: int
    """Number of its first segment."""
    end_segment: int
    """Number of the segment after its last one."""


@dataclass(frozen=True)
class StoredReplay:
    """What was stored of a replay memory."""

    parts: Sequence[Part] = ()
    """The parts that a manifest must list."""
    steps: int = 0
    """Environment steps in these parts."""
    memory_steps: int = 0
    """Environment steps that the memory had."""
    pieces: Mapping[int, StoredPiece] = field(default_factory=dict)
    """The pieces by the number in their name."""


class ReplayFiles:
    """Stores and restores the replay memory of one agent.

    files = ReplayFiles(store, limit_bytes)
    files.restore(manifest.parts, replay)
    stored = files.store(ReplayView.of(replay))      # in any thread, while the training continues
    publish(..., stored=stored.parts)
    files.published(stored)
    """

    def __init__(self, store: CheckpointStore, limit_bytes: int, activity: Activity | None = None) -> None:
        """Starts without knowing any stored piece.

        Args:
            store: Where pieces are stored.
            limit_bytes: Most bytes to store with one checkpoint; of a larger memory a sample is stored, see
                podrace.checkpoint_store.replay_parts. 0: none.
            activity: What the learner does. It prepares while memory is copied, which may hang if it is on a GPU.
        """
        self._store, self._limit_bytes = store, limit_bytes
        self._activity = activity or Activity()
        # Only pieces of the newest published manifest, or of the one that the agent started from: no garbage collection
        # deletes these while the agent is trained.
        self._known: Mapping[int, StoredPiece] = {}

    def store(self, view: ReplayView) -> StoredReplay:
        """Stores what changed since the last published checkpoint. Blocks. A full store is logged, not raised."""
        if not self._limit_bytes:
            return StoredReplay(memory_steps=view.size)
        window = ReplayWindow(view.first_segment, view.end_segment, view.replay.segment_steps, view.priorities)
        state_file = encode(window.to_file(), {})
        selected, size = self._selected(view, len(state_file)), view.piece_segments
        fitting_steps = sum(view.steps_between(first_segment, first_segment + size) for first_segment in selected)
        if not is_useful(fitting_steps, view.size):
            return _too_little(fitting_steps, view)
        pieces: dict[int, StoredPiece] = {}
        try:
            for first_segment in selected:
                if piece := self._piece(view, first_segment):
                    pieces[first_segment] = piece
            state = store_part(self._store, STATE, state_file)
        except ResourceExhausted as error:
            _log.warning("the checkpoint is published without its replay memory", error=error.message)
            return StoredReplay(memory_steps=view.size)
        # Sizes were estimated when the pieces were selected.
        parts = select([state, *(piece.part for piece in pieces.values())], self._limit_bytes)
        names = {part.name for part in parts}
        kept = {number: piece for number, piece in pieces.items() if piece.part.name in names}
        steps = sum(view.steps_between(piece.first_segment, piece.end_segment) for piece in kept.values())
        return StoredReplay(parts, steps, view.size, kept) if is_useful(steps, view.size) else _too_little(steps, view)

    def published(self, stored: StoredReplay) -> None:
        """Notes that a manifest was published that lists these parts."""
        self._known = stored.pieces

    def _selected(self, view: ReplayView, state_bytes: int) -> list[int]:
        """Returns the first segments of the pieces that probably fit within the limit."""
        pieces = [Part(name=piece_name(first), size_bytes=self._size_bytes(view, first)) for first in view.pieces()]
        chosen = select([Part(name=STATE, size_bytes=state_bytes), *pieces], self._limit_bytes)
        return [first_segment_of(part.name) for part in chosen if part.name != STATE]

    def _size_bytes(self, view: ReplayView, first_segment: int) -> int:
        if first_segment in self._known:
            return self._known[first_segment].part.size_bytes
        segments = view.steps_between(first_segment, first_segment + view.piece_segments) // view.replay.segment_steps
        return segments * view.segment_bytes

    def _piece(self, view: ReplayView, first_segment: int) -> StoredPiece | None:
        known = self._known.get(first_segment)
        if known and known.end_segment == first_segment + view.piece_segments and view.is_final(first_segment):
            return known
        with self._activity.doing(ROLE_PHASE_PREPARING):
            piece = view.read(first_segment)
        if piece is None:
            return None
        part = store_part(self._store, piece_name(first_segment), encode(piece.to_file(), {}))
        return StoredPiece(part, piece.first_segment, piece.end_segment)

    def restore(self, parts: Iterable[Part], replay: ReplayBuffer) -> int:
        """Restores the newest stored steps that fit into an empty memory; the environments start new episodes. Blocks.

        Returns:
            How many environment steps were restored; 0: the memory is empty.
        """
        listed = {part.name: part for part in parts}
        try:
            window, pieces = self._stored(listed, replay)
            restorer = ReplayRestorer(replay, window)
            for piece in pieces:
                with self._activity.doing(ROLE_PHASE_PREPARING):
                    added = restorer.add(piece)
                if not added:
                    break
        except STORAGE_FAULTS:
            # The memory must be empty if the caller repeats this.
            replay.clear()
            raise
        except (DataLoss, InvalidArgument, NotFound) as error:
            replay.clear()
            _log.warning("the replay memory starts empty", error=error.message)
            return 0
        expected = min(window.size, replay.capacity)
        if not is_useful(replay.size, expected):
            _log.warning("the replay memory starts empty: too little of it is left", steps=replay.size, of=expected)
            replay.clear()
            return 0
        self._remember(listed, restorer.unchanged)
        return replay.size

    def _stored(self, listed: Mapping[str, Part], replay: ReplayBuffer) -> tuple[ReplayWindow, Iterator[ReplayPiece]]:
        """Reads the window of a stored memory, and its pieces one by one, the newest first."""
        if STATE not in listed:
            raise DataLoss("the checkpoint has no state of the replay memory")
        state = self._decode(listed[STATE])
        parts = [listed[name] for name in sorted(listed, reverse=True) if name != STATE]
        if released_replay.is_state(state):
            return released_replay.read(state, (self._decode(part) for part in parts), replay)
        return ReplayWindow.from_file(state), self._pieces(parts, replay)

    def _pieces(self, parts: Iterable[Part], replay: ReplayBuffer) -> Iterator[ReplayPiece]:
        for part in parts:
            try:
                yield ReplayPiece.from_file(self._decode(part), replay)
            except (DataLoss, NotFound) as error:
                _log.warning("a piece of the replay memory cannot be read; the others are", error=error.message)

    def _decode(self, part: Part) -> dict[str, torch.Tensor]:
        return decode(read_part(self._store, part))[0]

    def _remember(self, listed: Mapping[str, Part], unchanged: Mapping[int, int]) -> None:
        """Notes the pieces that are in the memory as they were stored."""
        listed_pieces = {first: listed[piece_name(first)] for first in unchanged if piece_name(first) in listed}
        # Pieces in the folder of another tournament are stored again, so that a manifest lists only objects of its
        # tournament: access is granted by folder.
        self._known = {
            first: StoredPiece(part, first, unchanged[first])
            for first, part in listed_pieces.items()
            if self._store.has_object(part.digest)
        }


def _too_little(steps: int, view: ReplayView) -> StoredReplay:
    _log.warning("the replay memory is not stored: too little of it fits", steps=steps, of=view.size)
    return StoredReplay(memory_steps=view.size)
