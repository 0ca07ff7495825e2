"""Reads the steps that other agents of the tournament experienced, from the replay memories of their checkpoints.

It belongs to the part of the leader that calls the leaderboard and reads the checkpoint store. A memory that cannot be
used is skipped and reported; errors in the files of other agents never stop the training.

Only steps that the other agent experienced itself are read, each of them once: what it inherited from its parent is
read from the parent. Its manifest states how many environment steps are its own; these are the newest ones of its
memory.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS, ReplayWindow, dense_steps
from agentpod.experience.replay_view import ReplayPiece
from agentpod.learner.interfaces import ForeignSteps, Steps
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.replay_parts import PIECE, STATE
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import InvalidArgument, PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.tensor_transport.codec import decode

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

    def __init__(self, store: CheckpointStore, updater: Any, agent: pb.Agent) -> None:
        """Creates the reader.

        Args:
            store: Where checkpoints are stored.
            updater: Stub of the leaderboard's updater.
            agent: The agent that learns.
        """
        self._store, self._updater, self._agent = store, updater, agent
        self._sequence = 0
        # By agent, the number of the first row that was not read yet.
        self._next_row: dict[str, int] = {}

    async def read(self, lease_token: str, replay: ReplayBuffer) -> list[ForeignSteps]:
        """Returns the new steps of each agent, or why they are skipped.

        Args:
            lease_token: Token of the lease on the agent.
            replay: Memory with the fields that the steps must have.

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
        return await asyncio.to_thread(self._read_all, answer.sources, replay)

    def _read_all(self, sources: Sequence[pb.ExperienceSource], replay: ReplayBuffer) -> list[ForeignSteps]:
        found, budget = [], READ_BYTES
        for source in sources:
            try:
                runs, size = self._read_source(source, replay, budget)
                budget -= size
                if runs:
                    found.append(ForeignSteps(source.agent_id, runs))
            except PodraceError as error:
                found.append(ForeignSteps(source.agent_id, left_out=error.message))
        return found

    def _read_source(
        self, source: pb.ExperienceSource, replay: ReplayBuffer, budget_bytes: int
    ) -> tuple[list[Steps], int]:
        """Returns the new runs of steps of a memory, oldest first, and how many bytes were read."""
        manifest = read_manifest(self._store, source.manifest_digest)
        if _environment(manifest.hyperparameters) != _environment(self._agent.hyperparameters):
            raise InvalidArgument("acts in another environment: searched values of the environment differ")
        parts = {part.name: part for part in manifest.parts}
        if STATE not in parts:
            return [], 0
        window = ReplayWindow.from_file(self._decode(parts[STATE]))
        pieces, size, rows, steps = list[_NumberedSteps](), 0, 0, 0
        for name in sorted((name for name in parts if name.startswith(PIECE)), reverse=True):
            full = steps >= replay.capacity or size + parts[name].size_bytes > budget_bytes
            if rows >= BLOCK_ROWS and full:
                break
            piece = ReplayPiece.from_file(self._decode(parts[name]), replay)
            size += parts[name].size_bytes
            own_rows = manifest.environment_steps // piece.count
            begin = max(self._next_row.get(source.agent_id, 0), window.end_segment * piece.horizon - own_rows)
            pieces.append(_NumberedSteps.of(piece).since(begin))
            rows, steps = rows + pieces[-1].rows, steps + pieces[-1].rows * piece.count
            if piece.first_segment * piece.horizon <= begin:
                break
        runs = _joined(pieces[::-1])
        if runs:
            self._next_row[source.agent_id] = runs[-1].first_row + runs[-1].rows // BLOCK_ROWS * BLOCK_ROWS
        return [run.steps for run in runs], size

    def _decode(self, part: Part) -> dict[str, Tensor]:
        return decode(read_part(self._store, part))[0]


@dataclass(frozen=True)
class _NumberedSteps:
    """Consecutive steps, [L, N, ...] each, whose rows are numbered over all training of their agent."""

    first_row: int
    steps: Steps

    @classmethod
    def of(cls, piece: ReplayPiece) -> "_NumberedSteps":
        return cls(piece.first_segment * piece.horizon, dense_steps(piece))

    @property
    def rows(self) -> int:
        return len(self.steps["reward"])

    def since(self, row: int) -> "_NumberedSteps":
        """Returns views of the steps from a row on."""
        dropped = min(max(row - self.first_row, 0), self.rows)
        return _NumberedSteps(self.first_row + dropped, {name: steps[dropped:] for name, steps in self.steps.items()})


def _joined(pieces: Sequence[_NumberedSteps]) -> list[_NumberedSteps]:
    """Joins pieces, oldest first, where one continues the other; drops empty ones."""
    runs: list[_NumberedSteps] = []
    for piece in pieces:
        if not piece.rows:
            continue
        if runs and runs[-1].first_row + runs[-1].rows == piece.first_row:
            last = runs.pop()
            both = {name: torch.cat((steps, piece.steps[name])) for name, steps in last.steps.items()}
            piece = _NumberedSteps(last.first_row, both)
        runs.append(piece)
    return runs


def _environment(hyperparameters: Struct) -> dict[str, Any]:
    """Returns the searched values that determine what a step of the environment is."""
    values = json_format.MessageToDict(hyperparameters)
    return {name: value for name, value in values.items() if name.startswith(ENVIRONMENT) and name != LANES}
