"""Reads the steps that other agents of the tournament experienced, from the replay memories of their checkpoints.

It belongs to the part of the leader that calls the leaderboard and reads the checkpoint store. A memory that cannot be
used is skipped and reported; errors in the files of other agents never stop the training. A memory that the store does
not return at the moment is read at the next call.

Only steps that the other agent experienced itself are read, each of them once: what it inherited from its parent is
read from the parent. Its manifest states how many environment steps are its own; these are the newest ones of its
memory. An agent that was resumed without its memory numbers its segments from 0 again, and is then read from there.

Single pieces of a memory may be missing: the memories of ended agents are reduced to samples
(`assignment.tournament_replay_bytes`). The other pieces are read. A malformed piece is left out and reported.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS, ReplayWindow, check_lanes, dense_steps
from agentpod.experience.replay_view import ReplayPiece
from agentpod.learner.interfaces import ForeignSteps, Steps
from agentpod.storage_waits import STORAGE_FAULTS
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.replay_parts import PIECE, STATE, piece_name
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss, InvalidArgument, NotFound, PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.tensor_transport.codec import decode

_log = structlog.get_logger(__name__)

DEADLINE_SECONDS = 2.0
"""Time limit of a list of memories: without one the agent trains with what it has."""
READ_BYTES = 64 * 2**20
"""Most bytes to read in one call, unless a single block is larger. Older steps are skipped."""
ENVIRONMENT = "environment."
"""Prefix of the names of searched values that belong to the environment."""
LANES = "environment.count"
"""The only searched value of the environment that does not change the meaning of a step."""


class ExperienceReader:
    """Reads what other agents experienced since the last call.

    reader = ExperienceReader(store, updater, agent)
    steps = await reader.read(lease_token, replay)
    """

    def __init__(
        self,
        store: CheckpointStore,
        updater: Any,
        agent: pb.Agent,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates the reader.

        Args:
            store: Where checkpoints are stored.
            updater: Stub of the leaderboard's updater.
            agent: The agent that learns.
            wall_clock: Seconds since 1970.
        """
        self._store, self._updater, self._agent, self._wall_clock = store, updater, agent, wall_clock
        self._sequence = 0
        self._read: dict[str, _Read] = {}
        """How far the memory of each agent was read."""
        self._unread: list[pb.ExperienceSource] = []
        """Memories that the store did not return, newest first."""

    async def read(self, lease_token: str, replay: ReplayBuffer) -> list[ForeignSteps]:
        """Returns the new steps of each agent, or why they are skipped; the agent that published first comes first.

        The newest memories are read first, an equal share of `replay` from each; what one lacks, older ones may fill.

        Args:
            lease_token: Token of the lease on the agent.
            replay: Memory with the fields that the steps must have, and as many steps as can be kept.

        Raises:
            PodraceError: The leaderboard does not answer.
        """
        request = pb.ListExperienceRequest(
            agent_id=self._agent.agent_id, after_sequence=self._sequence, lease_token=lease_token
        )
        answer: pb.ListExperienceResponse = await rpc.call(
            self._updater.ListExperience, request, deadline_seconds=DEADLINE_SECONDS
        )
        self._sequence = answer.sequence
        listed = {source.agent_id for source in answer.sources}
        unread = [source for source in self._unread if source.agent_id not in listed]
        return await asyncio.to_thread(self._read_all, [*answer.sources, *unread], replay)

    def _read_all(self, sources: Sequence[pb.ExperienceSource], replay: ReplayBuffer) -> list[ForeignSteps]:
        found, budget = [], _Budget(READ_BYTES, replay.capacity)
        self._unread = []
        for position, source in enumerate(sources):
            if budget.steps <= 0:
                break
            try:
                one = self._read_source(source, replay, budget.shared_by(len(sources) - position))
                if one.runs or one.left_out:
                    found.append(one)
            except STORAGE_FAULTS as error:
                self._unread.append(source)
                _log.warning("a replay memory is read at the next poll", source=source.agent_id, error=error.message)
            except PodraceError as error:
                found.append(ForeignSteps(source.agent_id, left_out=error.message))
            except Exception as error:  # other pods wrote the files
                _log.exception("a replay memory cannot be read", source=source.agent_id)
                found.append(ForeignSteps(source.agent_id, left_out=f"cannot be read: {type(error).__name__}"))
        return found[::-1]

    def _read_source(self, source: pb.ExperienceSource, replay: ReplayBuffer, budget: "_Budget") -> ForeignSteps:
        """Returns the new steps of a memory, and why a piece is left out, if one is."""
        manifest = read_manifest(self._store, source.manifest_digest)
        if _environment(manifest.hyperparameters) != _environment(self._agent.hyperparameters):
            raise InvalidArgument("acts in another environment: searched values of the environment differ")
        parts = {part.name: part for part in manifest.parts}
        if STATE not in parts:
            return ForeignSteps(source.agent_id)
        window = ReplayWindow.from_file(self._decode(parts[STATE]))
        unnumbered = manifest.environment_steps - window.end_segment * window.segment_steps
        begin = self._read.get(source.agent_id, _Read()).begin(window, unnumbered)
        names = sorted((name for name in parts if name.startswith(PIECE)), reverse=True)
        newer = sum(name > piece_name(begin // window.segment_steps) for name in names)
        needed = [parts[name] for name in names[: newer + 1]]
        pieces, left_out = self._read_pieces(source.agent_id, needed, window, replay, begin, budget)
        runs = _joined(pieces[::-1])
        if runs:
            rows = runs[-1].first_row + runs[-1].rows // BLOCK_ROWS * BLOCK_ROWS
            self._read[source.agent_id] = _Read(rows * runs[-1].lanes, unnumbered)
        budget.use(steps=sum(run.rows // BLOCK_ROWS * BLOCK_ROWS * run.lanes for run in runs))
        return ForeignSteps(source.agent_id, [run.steps for run in runs], left_out, self._age_seconds(manifest))

    def _read_pieces(
        self,
        agent_id: str,
        parts: Sequence[Part],
        window: ReplayWindow,
        replay: ReplayBuffer,
        begin: int,
        budget: "_Budget",
    ) -> tuple[list["_NumberedSteps"], str]:
        """Reads the steps from number `begin` on, the newest piece first, until there are enough.

        Returns:
            The steps, and why the newest malformed piece is left out, if there is one.

        Raises:
            PodraceError: No piece can be read.
        """
        pieces, faults, rows, steps, left_out = list[_NumberedSteps](), list[PodraceError](), 0, 0, ""
        for part in parts:
            full = steps >= budget.steps or part.size_bytes > budget.bytes
            if full and (rows >= BLOCK_ROWS or left_out):
                break
            try:
                tensors = self._decode(part)
                budget.use(size_bytes=part.size_bytes)
                piece = ReplayPiece.from_file(tensors, replay)
                window.check(piece)
            except (DataLoss, NotFound) as error:
                faults.append(error)
                continue
            except InvalidArgument as error:
                faults.append(error)
                left_out = left_out or f"{part.name}: {error.message}"
                continue
            pieces.append(_NumberedSteps.of(piece).since(-(-begin // piece.count)))
            rows, steps = rows + pieces[-1].rows, steps + pieces[-1].rows * piece.count
        if faults and not pieces:
            raise InvalidArgument(left_out) if left_out else faults[0]
        _log_faults(agent_id, faults)
        return pieces, left_out

    def _age_seconds(self, manifest: Manifest) -> float:
        """Returns the time since a checkpoint was published; 0 if its manifest does not state when."""
        if not manifest.HasField("publish_time"):
            return 0.0
        # The clocks of two hosts may differ.
        return max(0.0, self._wall_clock() - manifest.publish_time.ToNanoseconds() / 1e9)

    def _decode(self, part: Part) -> dict[str, Tensor]:
        return decode(read_part(self._store, part))[0]


@dataclass
class _Budget:
    """What may still be read in one call."""

    bytes: int
    """Bytes of files."""
    steps: int
    """Environment steps in whole blocks."""
    whole: "_Budget | None" = None
    """That of all memories, if this is the share of one of them."""

    def shared_by(self, memories: int) -> "_Budget":
        """Returns the share of the next memory, with all bytes and an equal part of the steps."""
        return _Budget(self.bytes, -(-self.steps // memories), self)

    def use(self, *, size_bytes: int = 0, steps: int = 0) -> None:
        """Records what was read."""
        self.bytes -= size_bytes
        self.steps -= steps
        if self.whole:
            self.whole.use(size_bytes=size_bytes, steps=steps)


@dataclass(frozen=True)
class _Read:
    """How far the memory of an agent was read; its steps are numbered over all training of the agent."""

    end: int = 0
    """Number of the first environment step that was not read yet."""
    unnumbered: int = 0
    """Environment steps that the agent had experienced itself, above those that its memory had numbers for."""

    def begin(self, window: ReplayWindow, unnumbered: int) -> int:
        """Returns the number of the first step to read.

        Args:
            window: The window of the memory now.
            unnumbered: As the attribute, now. It is below 0 for a memory that began with inherited steps. It rises by
                all numbers that were in use when the agent is resumed without its memory.
        """
        restarted = window.end_segment * window.segment_steps < self.end or 0 < self.end <= unnumbered - self.unnumbered
        return max(0 if restarted else self.end, -unnumbered)


@dataclass(frozen=True)
class _NumberedSteps:
    """Consecutive steps, [L, N, ...] each, whose rows are numbered over all training of their agent."""

    first_segment: int
    first_row: int
    steps: Steps

    @classmethod
    def of(cls, piece: ReplayPiece) -> "_NumberedSteps":
        return cls(piece.first_segment, piece.first_segment * piece.horizon, dense_steps(piece))

    @property
    def rows(self) -> int:
        return len(self.steps["reward"])

    @property
    def lanes(self) -> int:
        return self.steps["reward"].shape[1]

    def since(self, row: int) -> "_NumberedSteps":
        """Returns views of the steps from a row on."""
        dropped = min(max(row - self.first_row, 0), self.rows)
        steps = {name: tensor[dropped:] for name, tensor in self.steps.items()}
        return _NumberedSteps(self.first_segment, self.first_row + dropped, steps)


def _joined(pieces: Sequence[_NumberedSteps]) -> list[_NumberedSteps]:
    """Joins pieces, oldest first, where one continues the other; drops empty ones.

    Raises:
        InvalidArgument: A piece has another number of environments than the one that it continues.
    """
    runs: list[_NumberedSteps] = []
    for piece in pieces:
        if not piece.rows:
            continue
        if runs and runs[-1].first_row + runs[-1].rows == piece.first_row:
            last = runs.pop()
            check_lanes(last.first_segment, last.lanes, piece.lanes)
            both = {name: torch.cat((steps, piece.steps[name])) for name, steps in last.steps.items()}
            piece = _NumberedSteps(last.first_segment, last.first_row, both)
        runs.append(piece)
    return runs


def _log_faults(agent_id: str, faults: Sequence[PodraceError]) -> None:
    """Logs which pieces are missing. Deleted ones are expected, damaged and malformed ones are not."""
    if faults:
        damaged = [error for error in faults if not isinstance(error, NotFound)]
        log = _log.warning if damaged else _log.info
        error = (damaged or faults)[0].message
        log(
            "pieces of a replay memory cannot be read; the others are", source=agent_id, pieces=len(faults), error=error
        )


def _environment(hyperparameters: Struct) -> dict[str, Any]:
    """Returns the searched values that determine what a step of the environment is."""
    values = json_format.MessageToDict(hyperparameters)
    return {name: value for name, value in values.items() if name.startswith(ENVIRONMENT) and name != LANES}
