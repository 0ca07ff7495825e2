"""Lanes of random episodes, written into a replay buffer and recorded as single transitions for comparison.

Memory that must not be read is poisoned (NaN, random flags), so that reading it changes results. Observations are
numbered, so that each identifies its step.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, replay_fields
from agentpod.experience.transitions import TransitionBatch
from simulators.base import Space

OBSERVED = Space("continuous", (2,), torch.float32)
DISCRETE = Space("discrete", (), torch.int64, n=3)
CONTINUOUS = Space("continuous", (2,), torch.float32, low=(-1.0, -1.0), high=(1.0, 1.0))
COPY = "cpu:0"
"""The memory's device under another name: the replay buffer keeps a copy, as it does on another device."""


@dataclass
class Transition:
    """One step of one lane, and the final observation of an episode that ended there."""

    observation: list[float]
    action: list[float]
    reward: float
    terminated: bool
    truncated: bool
    left_behind: list[float]


@dataclass
class World:
    """Lanes of random episodes, written into the buffer as a worker writes them, and recorded one by one."""

    horizon: int
    count: int
    segments: int
    action_space: Space = DISCRETE
    end_probability: float = 0.15
    seed: int = 0
    memory: dict[str, Tensor] = field(init=False)
    history: list[list[Transition]] = field(default_factory=list, init=False)
    row_time: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        fields = replay_fields(OBSERVED, self.action_space, self.horizon * self.segments, self.count)
        self.memory = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in fields.items()}
        self.generator = torch.Generator().manual_seed(self.seed)
        self.numbers = itertools.count(1)
        self.poison(0, self.horizon * self.segments)
        self.now = [self.observe() for _ in range(self.count)]

    def observe(self) -> list[float]:
        number = float(next(self.numbers))
        return [number, -number]

    def poison(self, first_row: int, rows: int) -> None:
        for tensor in self.memory.values():
            part = tensor[first_row : first_row + rows]
            if tensor.dtype.is_floating_point:
                part.fill_(math.nan)
            else:
                part.random_(0, 2, generator=self.generator)

    def fill(self, first_row: int) -> None:
        """Writes one granted segment."""
        self.poison(first_row, self.horizon)
        for row in range(first_row, first_row + self.horizon):
            steps = [self.step(lane) for lane in range(self.count)]
            self.row_time[row] = len(self.history)
            self.history.append(steps)
            for lane, step in enumerate(steps):
                self.write(row, lane, step, last=row == first_row + self.horizon - 1)

    def step(self, lane: int) -> Transition:
        terminated, truncated = (torch.rand(2, generator=self.generator) < self.end_probability).tolist()
        truncated &= not terminated
        action, reward = torch.rand(2, generator=self.generator), torch.randn((), generator=self.generator)
        acted = action.tolist() if self.action_space is CONTINUOUS else float(int(action[0] * 3))
        observation, left_behind = self.now[lane], self.observe()
        self.now[lane] = self.observe() if terminated or truncated else left_behind
        return Transition(observation, acted, float(reward), terminated, truncated, left_behind)

    def write(self, row: int, lane: int, step: Transition, *, last: bool) -> None:
        for name in ("observation", "action", "reward", "terminated", "truncated"):
            self.memory[name][row, lane] = torch.tensor(getattr(step, name))
        if step.truncated:
            self.memory[FINAL][row, lane] = torch.tensor(step.left_behind)
        elif last:
            self.memory[FINAL][row, lane] = torch.tensor(self.now[lane])

    def restart(self) -> None:
        """Resets the environments: the last written steps have no successor."""
        for step in self.history[-1]:
            step.truncated |= not step.terminated
        self.now = [self.observe() for _ in range(self.count)]

    def expected(
        self, row: int, lane: int, n_step: int, discount: float
    ) -> tuple[Transition, float, float, list[float]]:
        """Returns the first step, the sum of rewards, the discount and the next observation, by definition."""
        time, total, power = self.row_time[row], 0.0, 1.0
        for step in (steps[lane] for steps in self.history[time : time + n_step]):
            total += power * step.reward
            power *= discount
            if step.terminated:
                return self.history[time][lane], total, 0.0, []
            if step.truncated:
                break
        return self.history[time][lane], total, power, step.left_behind


def check(world: World, batch: TransitionBatch, n_step: int, discount: float) -> None:
    for index, observation, action, reward, power, following in zip(
        *(getattr(batch, name).tolist() for name in ("index", "observation", "action", "reward", "discount")),
        batch.next_observation.tolist(),
        strict=True,
    ):
        first, total, expected_power, left_behind = world.expected(*divmod(index, world.count), n_step, discount)
        assert observation == first.observation
        assert action == first.action
        assert math.isclose(reward, total, abs_tol=1e-5)
        assert math.isclose(power, expected_power, abs_tol=1e-6)
        assert following == left_behind or not expected_power
    assert batch.next_observation.isfinite().all()
    assert batch.weight.tolist() == [1.0] * len(batch.index)


def advance(world: World, replay: ReplayBuffer, segments: int) -> None:
    for _ in range(segments):
        first_row = replay.grant()
        world.fill(first_row)
        replay.receive(first_row)


def ready_indices(world: World, replay: ReplayBuffer) -> Tensor:
    """Returns all steps that can be sampled: the newest steps of the history."""
    rows = [row for row, time in world.row_time.items() if time >= len(world.history) - replay.size // world.count]
    return (torch.tensor(rows).unsqueeze(1) * world.count + torch.arange(world.count)).flatten()
