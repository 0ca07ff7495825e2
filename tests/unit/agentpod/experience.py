"""Generates random experience for any algorithm, update after update, without a simulator."""

import dataclasses
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from agentpod.algorithms import ALGORITHMS, Algorithm, algorithm_class, make
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.rollout import rollout_fields
from agentpod.models.distributions import require_distribution
from podrace.tensor_transport.codec import encode
from simulators.base import Space

OBSERVED = Space("continuous", (3,), torch.float32)
TEAM = dataclasses.replace(OBSERVED, agents=("left", "right"))
SPACES = {
    "continuous": Space("continuous", (2,), torch.float32, low=(-2.0, -2.0), high=(2.0, 2.0)),
    "discrete": Space("discrete", (), torch.int64, n=3),
    "multi_discrete": Space("multi_discrete", (2,), torch.int64, choices=(3, 2)),
    "multi_binary": Space("multi_binary", (3,), torch.int64),
}
LANES = 4
_folder = tempfile.TemporaryDirectory()
sys.path.append(str(Path(__file__).parents[3] / "examples" / "algorithms"))
CLONING = "python:cloning:Cloning"
EXAMPLES = ("python:reinforce:Reinforce", "python:tqc:TQC", "python:c51:C51", CLONING, "python:lion:LionActorCritic")
"""Algorithms of users."""


def cases_of(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, kind) for name in names for kind in sorted(algorithm_class(name).action_kinds)]


def is_on_policy(case: tuple[str, str]) -> bool:
    return not algorithm_class(case[0]).settings_type().memory.replay_capacity


CASES = cases_of(ALGORITHMS)
EVERY_CASE = [*CASES, *cases_of(EXAMPLES)]
ON_POLICY = [case for case in CASES if is_on_policy(case)]
EVERY_ON_POLICY = [case for case in EVERY_CASE if is_on_policy(case)]
FOR_TEAMS = tuple(name for name in ALGORITHMS if getattr(algorithm_class(name), "trains_teams", False))
OFF_POLICY = [case for case in CASES if case not in ON_POLICY and case[0] not in FOR_TEAMS]
"""Those for one agent; those for teams count other steps."""

_SMALL = {
    "hidden_sizes": [8],
    "horizon": 8,
    "minibatch_size": 7,
    "epochs": 2,
    "batch_size": 16,
    "replay_capacity": 128,
    "warmup_steps": 0,
    "updates_per_step": 0.125,
}


def small(name: str) -> dict[str, object]:
    """Returns hyperparameters with which an update is fast."""
    known = {field.name for field in dataclasses.fields(algorithm_class(name).settings_type)}
    return {key: value for key, value in _SMALL.items() if key in known}


def new_algorithm(name: str, kind: str, seed: int = 1, **hyperparameters: object) -> Algorithm:
    if name == CLONING:
        hyperparameters = {"dataset": dataset(kind), **hyperparameters}
    settings, observed = small(name), OBSERVED
    if getattr(algorithm_class(name), "trains_teams", False):
        observed = TEAM
        # A step of a team has two lanes.
        settings |= {key: 0.25 for key in settings if key == "updates_per_step"}
    return make(name, observed, SPACES[kind], {**settings, **hyperparameters}, seed)


@cache
def dataset(kind: str) -> str:
    """Writes a data set of random observations with actions, and returns its path."""
    observation = torch.randn(64, *OBSERVED.shape, generator=torch.Generator().manual_seed(1))
    action = torch.arange(64) % 3 if kind == "discrete" else observation[:, :2].clamp(-1.0, 1.0)
    path = Path(_folder.name) / f"{kind}.safetensors"
    path.write_bytes(encode({"observation": observation, "action": action}, {}))
    return str(path)


def random_steps(
    shapes: dict[str, tuple[int, ...]], algorithm: Algorithm, kind: str, generator: torch.Generator
) -> dict[str, Tensor]:
    """Returns random observations, rewards, terminations and truncations, with actions of the algorithm's policy."""
    steps = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    steps["terminated"] = steps["terminated"] > 1.3
    steps["truncated"] = (steps["truncated"] > 1.3) & ~steps["terminated"]
    horizon, lanes = steps["reward"].shape
    seen = steps["observation"][:horizon].flatten(0, 1)
    action = algorithm.policy.act(seen, algorithm.policy.noise((len(seen),), generator))
    steps["action"] = action.view(horizon, lanes, *action.shape[1:])
    return steps


def random_rollout(algorithm: Algorithm, kind: str, seed: int, lanes: int = LANES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    fields = rollout_fields(OBSERVED, SPACES[kind], algorithm.memory.horizon, lanes)
    rollout = random_steps({name: field.shape for name, field in fields.items()}, algorithm, kind, generator)
    seen = rollout["observation"][:-1].flatten(0, 1)
    log_prob = require_distribution(algorithm.policy.head).log_prob(
        algorithm.policy.outputs(seen), rollout["action"].flatten(0, 1)
    )
    rollout["log_prob"] = log_prob.view(-1, lanes)
    return rollout


class Course:
    """Generates experience 0, 1, ... for an algorithm; several algorithms may learn from the same experience.

    course = Course(algorithm, "discrete")
    metrics = algorithm.update(course.next())
    """

    def __init__(self, algorithm: Algorithm, kind: str, seed: int = 0, lanes: int = LANES) -> None:
        self.algorithm, self.kind, self.seed, self.lanes, self.number = algorithm, kind, seed, lanes, 0
        memory = algorithm.memory
        self.memory: dict[str, Tensor] = {}
        if memory.replay_capacity:
            rows = replay_rows(memory.replay_capacity, memory.horizon, lanes)
            fields = replay_fields(OBSERVED, SPACES[kind], rows, lanes)
            self.memory = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
            self.replay = ReplayBuffer(
                self.memory,
                memory.horizon,
                prioritized=memory.prioritized,
                priority_exponent=memory.priority_exponent,
            )

    def next(self) -> object:
        self.number += 1
        if not self.memory:
            return random_rollout(self.algorithm, self.kind, 1000 * self.seed + self.number, self.lanes)
        generator = torch.Generator().manual_seed(1000 * self.seed + self.number)
        horizon = self.algorithm.memory.horizon
        shapes = {name: (horizon, *tensor.shape[1:]) for name, tensor in self.memory.items()}
        first = self.replay.grant()
        for name, tensor in random_steps(shapes, self.algorithm, self.kind, generator).items():
            self.memory[name][first : first + horizon].copy_(tensor)
        self.replay.receive(first)
        return self.replay
