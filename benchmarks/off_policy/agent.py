"""Trains an off-policy agent in one process, and starts agents from its checkpoint as a pod does."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentpod.algorithms import make
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.replay_view import ReplayView
from agentpod.experience.rollout import Lanes, collect
from agentpod.learner.checkpoint_files import Counters, freeze, restore
from agentpod.learner.replay_files import ReplayFiles
from agentpod.models.actors import PolicyActor
from agentpod.roles.evaluator import play
from agentpod.seeding import derive_generator, derive_seed
from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.store import CheckpointStore
from simulators import make as make_simulator


@dataclass(frozen=True)
class Setup:
    """What all agents of a benchmark have in common."""

    environment: str
    """Id of the environment."""
    count: int
    """Environments of an agent."""
    algorithm: str
    """Name of the algorithm."""
    hyperparameters: Mapping[str, object]
    """Hyperparameters that differ from their defaults."""


@dataclass(frozen=True)
class Checkpoint:
    """A stored state of an agent."""

    parts: Mapping[str, bytes]
    """Networks and learner state."""
    replay: tuple[Part, ...]
    """The parts of the replay memory."""
    replay_steps: int
    """Environment steps in them."""


class Agent:
    """Collects and updates in alternation, on one thread.

    agent = Agent(setup, seed=1)
    agent.train(1000)
    child = Agent(setup, seed=2, start=agent.checkpoint(store), store=store)
    """

    def __init__(
        self, setup: Setup, seed: int, start: Checkpoint | None = None, store: CheckpointStore | None = None
    ) -> None:
        """Makes a new agent, or one that starts from a checkpoint in a store."""
        self._simulator = make_simulator(setup.environment, setup.count)
        spaces = self._simulator.observation_space, self._simulator.action_space
        self.algorithm: Any = make(setup.algorithm, *spaces, setup.hyperparameters, seed)
        memory = self.algorithm.memory
        rows = replay_rows(memory.replay_capacity, memory.horizon, setup.count)
        fields = replay_fields(*spaces, rows, setup.count)
        self._tensors = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
        self.replay = ReplayBuffer(self._tensors, memory.horizon, prioritized=memory.prioritized)
        if start and store:
            restore(self.algorithm, start.parts)
            ReplayFiles(store, 2**50).restore(start.replay, self.replay)
        self._lanes = Lanes.start(self._simulator.reset(derive_seed(seed, "reset", 0)))
        self.setup, self._seed, self.steps = setup, seed, 0

    def train(self, steps: int) -> None:
        """Trains for at least this many environment steps more."""
        end = self.steps + steps
        while self.steps < end:
            self.advance()

    def advance(self) -> None:
        """Collects one segment and makes the updates that follow."""
        first_row, horizon = self.replay.grant(), self.algorithm.memory.horizon
        rows = {name: tensor[first_row : first_row + horizon] for name, tensor in self._tensors.items()}
        generator = derive_generator("cpu", self._seed, "act", 0, self.algorithm.update_number)
        result = collect(self._simulator, self.algorithm.policy, rows, self._lanes, generator)
        self._lanes, self.steps = result.lanes, self.steps + result.steps
        self.replay.receive(first_row)
        self.algorithm.update(self.replay)

    def checkpoint(self, store: CheckpointStore, limit_bytes: int = 2**50) -> Checkpoint:
        """Stores a checkpoint, with at most `limit_bytes` of replay memory."""
        stored = ReplayFiles(store, limit_bytes).store(ReplayView.of(self.replay))
        return Checkpoint(freeze(self.algorithm, Counters()).parts(), tuple(stored.parts), stored.steps)

    def copy(self, seed: int) -> "Agent":
        """Returns a copy in the middle of its episodes that continues with other random numbers."""
        other = copy.deepcopy(self)
        other._seed = other.algorithm._seed = seed
        return other

    def returns(self, episodes: int, seed: int) -> Tensor:
        """Returns the undiscounted returns [episodes] of greedy episodes; episode i depends only on i and the seed."""
        simulator = make_simulator(self.setup.environment, episodes)
        try:
            actor = PolicyActor(self.algorithm.policy, episodes, torch.Generator(), greedy=True)
            return play(simulator, actor, episodes, seed).returns
        finally:
            simulator.close()

    def close(self) -> None:
        """Closes the simulator."""
        self._simulator.close()
