"""Agents that publish replay memories for others, and the method of the leaderboard that lists them."""

from collections.abc import Sequence
from typing import Any

import torch
from replay_world import World, advance

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_restoring import BLOCK_ROWS
from agentpod.experience.replay_view import ReplayView
from agentpod.learner.interfaces import ForeignSteps
from agentpod.learner.replay_files import ReplayFiles
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.errors import Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as pb

HORIZON, COUNT = 4, 3
UNLIMITED = 2**40
WINDY = {"environment.options.wind": 0.5, "environment.count": 2}
MEMORY = ReplayBuffer(World(1, 1, 100_000).memory, 1)
"""Only its fields and capacity are used."""


def published(store: FolderStore, manifest: Manifest, replay: Sequence[Part] = ()) -> pb.ExperienceSource:
    claim(store, manifest.agent_id, 1)
    digest = publish(store, manifest.agent_id, 1, {"policy": b"", "learner": b""}, manifest, stored=replay)
    return pb.ExperienceSource(agent_id=manifest.agent_id, manifest_digest=digest)


class Other:
    """Another agent of the tournament, which publishes its replay memory."""

    def __init__(self, store: FolderStore, name: str, *, horizon: int = HORIZON, count: int = COUNT) -> None:
        self.store, self.name = store, name
        self.world = World(horizon, count, 400, seed=int(name.removeprefix("t-a")))
        self.replay = ReplayBuffer(self.world.memory, horizon)
        self.files = ReplayFiles(store, UNLIMITED)
        self.inherited_steps = self.steps_before = 0

    def inherit(self, segments: int) -> None:
        """Starts with what a parent experienced."""
        advance(self.world, self.replay, segments)
        self.inherited_steps = self.replay.steps

    def resume_without_memory(self) -> int:
        """Continues with an empty memory; returns how many rows were experienced before."""
        self.steps_before += self.replay.steps
        self.replay.clear()
        self.files = ReplayFiles(self.store, UNLIMITED)
        return len(self.world.history)

    def publish(self, segments: int, now: float | None = None, **hyperparameters: Any) -> pb.ExperienceSource:
        """Trains for some segments and publishes a checkpoint that states the time `now` in s since 1970, if given."""
        advance(self.world, self.replay, segments)
        stored = self.files.store(ReplayView.of(self.replay))
        self.files.published(stored)
        steps = self.steps_before + self.replay.steps
        manifest = Manifest(agent_id=self.name, environment_steps=steps - self.inherited_steps)
        manifest.hyperparameters.update(hyperparameters)
        if now is not None:
            manifest.publish_time.FromNanoseconds(int(now * 1e9))
        return published(self.store, manifest, stored.parts)


class Board:
    """The method of the leaderboard that a reader calls."""

    def __init__(self) -> None:
        self.sources: list[pb.ExperienceSource] = []
        self.requests: list[pb.ListExperienceRequest] = []
        self.reachable = True

    async def ListExperience(self, request: pb.ListExperienceRequest, **call: Any) -> pb.ListExperienceResponse:
        if not self.reachable:
            raise Unavailable("away")
        self.requests.append(request)
        return pb.ListExperienceResponse(sources=self.sources, sequence=len(self.requests) * 10)


def numbers(found: ForeignSteps) -> list[float]:
    """Returns the numbers of the observations of whole blocks, by row and lane."""
    rows = [run["observation"][: len(run["reward"]) // BLOCK_ROWS * BLOCK_ROWS, :, 0].flatten() for run in found.runs]
    return torch.cat(rows).tolist() if rows else []


def experienced(other: Other, rows: int) -> list[float]:
    """Returns the numbers of the first observations of an agent."""
    return [step.observation[0] for steps in other.world.history[:rows] for step in steps]
