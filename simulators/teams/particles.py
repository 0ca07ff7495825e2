"""Steps worlds of moving discs as one batch, with the dynamics of the multi-agent particle environments.

The equations are those of Mordatch & Abbeel 2018 (arXiv 1703.04908) and Lowe et al. 2017 (arXiv 1706.02275) as the
package mpe2 implements them; tests compare both step by step.
"""

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from simulators.base import Report, Space, Step

TIME_STEP, DAMPING = 0.1, 0.25
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 1e-3
DIRECTIONS = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
"""Forces of the discrete actions: none, left, right, down, up."""


@dataclass(frozen=True)
class Bodies:
    """The discs of one environment: first those that move, then the landmarks."""

    sizes: tuple[float, ...]
    """Radius of each disc that can collide; landmarks beyond them are only places."""
    accelerations: tuple[float, ...]
    """Force of a full action of each disc that moves."""
    highest_speeds: tuple[float, ...]
    """Limit of the speed of each disc that moves; infinity for none."""
    landmarks: int
    """Number of landmarks."""

    @property
    def movers(self) -> int:
        """Number of discs that move."""
        return len(self.accelerations)


class ParticleTask(Protocol):
    """What happens among the discs, without memory; N environments.

    Attributes:
        agents: Names of the A learning agents, which are the first A moving discs.
        bodies: The discs.
        observation_size: Numbers that an agent observes.
        landmark_range: Landmarks begin uniformly in the square of this half width, the others in that of 1.
    """

    agents: tuple[str, ...]
    bodies: Bodies
    observation_size: int
    landmark_range: float

    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        """Returns what the agents observe: [N, A, observation_size].

        Args:
            position: [N, E, 2].
            velocity: [N, M, 2].
        """
        ...

    def reward(self, position: Tensor) -> Tensor:
        """Returns the rewards of the agents [N, A] after a step."""
        ...

    def scripted(self, position: Tensor, velocity: Tensor, noise: Tensor) -> Tensor:
        """Returns the directions [N, M - A, 2] of the other moving discs; `noise` is uniform in [0, 1), [N, M - A]."""
        ...


def advance(bodies: Bodies, position: Tensor, velocity: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Moves all discs by one step.

        f_i = acceleration_i u_i + sum over j of 100 (p_i - p_j) / d_ij  k log(1 + exp(-(d_ij - r_i - r_j) / k))
        p  <- p + 0.1 v
        v  <- 0.75 v + 0.1 f, scaled down to the highest speed

    Args:
        bodies: M moving discs, E discs in all.
        position: [N, E, 2].
        velocity: [N, M, 2].
        direction: u, [N, M, 2], each element within [-1, 1].

    Returns:
        The new positions [N, E, 2] and velocities [N, M, 2].
    """
    movers, solid = bodies.movers, len(bodies.sizes)
    size, acceleration, limit = _constants(bodies, position.dtype, position.device)
    force = direction * acceleration[:, None] + _contact(position[:, :solid], size)[:, :movers]
    moved = torch.cat((position[:, :movers] + TIME_STEP * velocity, position[:, movers:]), 1)
    velocity = velocity * (1 - DAMPING) + TIME_STEP * force
    speed = velocity.norm(dim=-1).clamp(min=1e-12)
    return moved, velocity * (limit / speed).clamp(max=1.0).unsqueeze(-1)


@functools.cache
def _constants(bodies: Bodies, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sizes, accelerations and highest speeds of discs.

    They are kept, because the host waits for a GPU when it copies numbers there.
    """
    size, acceleration, limit = (
        torch.tensor(numbers, dtype=dtype, device=device)
        for numbers in (bodies.sizes, bodies.accelerations, bodies.highest_speeds)
    )
    return size, acceleration, limit


def _contact(position: Tensor, size: Tensor) -> Tensor:
    """Returns the forces [N, S, 2] between discs at positions [N, S, 2] of radius [S]."""
    delta = position.unsqueeze(2) - position.unsqueeze(1)
    distance = delta.norm(dim=-1).clamp(min=1e-12)
    depth = softplus((size[:, None] + size - distance) / CONTACT_MARGIN) * CONTACT_MARGIN
    # A disc does not collide with itself: delta is 0 there.
    force: Tensor = CONTACT_FORCE * (delta * (depth / distance).unsqueeze(-1)).sum(2)
    return force


class Particles:
    """N environments with A agents, N A lanes. See simulators.base.Simulator for the methods.

    All environments are at the same step of their episodes, which end only by truncation.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: Five directions, or with continuous actions a force in [-1, 1]^2.
        count: Number of lanes, N A.
        position: [N, E, 2], of all discs.
        velocity: [N, M, 2], of the discs that move.
    """

    def __init__(self, task: ParticleTask, count: int, device: str, *, maximum_steps: int, continuous: bool) -> None:
        """Starts episodes with seed 0; `reset` chooses another seed.

        Args:
            task: What the agents do.
            count: N, number of environments.
            device: Where they are stepped.
            maximum_steps: Steps of an episode.
            continuous: Whether actions are continuous.
        """
        self._task, self._environments, self._maximum_steps = task, count, maximum_steps
        self._device, self._generator = torch.device(device), torch.Generator(device)
        self.observation_space = Space("continuous", (task.observation_size,), torch.float32, agents=task.agents)
        ones = (1.0, 1.0)
        self.action_space = (
            Space("continuous", (2,), torch.float32, tuple(-one for one in ones), ones)
            if continuous
            else Space("discrete", (), torch.int64, n=len(DIRECTIONS))
        )
        self.count = count * len(task.agents)
        self._directions = torch.tensor(DIRECTIONS, device=self._device)
        self.reset(0)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator; the seed determines where episodes begin and what scripted discs draw."""
        self._generator.manual_seed(seed)
        self._begin()
        return self._observe()

    def _begin(self) -> None:
        bodies, count = self._task.bodies, self._environments
        drawn = torch.rand(count, bodies.movers + bodies.landmarks, 2, generator=self._generator, device=self._device)
        self.position = drawn * 2 - 1
        self.position[:, bodies.movers :] *= self._task.landmark_range
        self.velocity = self.position.new_zeros(count, bodies.movers, 2)
        self._steps = 0

    def _observe(self) -> Tensor:
        return self._task.observe(self.position, self.velocity).flatten(0, 1)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        task, agents = self._task, len(self._task.agents)
        own = self._directions[action] if self.action_space.kind == "discrete" else action.view(self.count, 2)
        direction = own.view(self._environments, agents, 2)
        others = task.bodies.movers - agents
        if others:
            noise = torch.rand(self._environments, others, generator=self._generator, device=self._device)
            direction = torch.cat((direction, task.scripted(self.position, self.velocity, noise)), 1)
        self.position, self.velocity = advance(task.bodies, self.position, self.velocity, direction)
        reward = task.reward(self.position).flatten()
        self._steps += 1
        final = observation = self._observe()
        ends = self._steps >= self._maximum_steps
        if ends:
            self._begin()
            observation = self._observe()
        flags = torch.zeros(2, self.count, dtype=torch.bool, device=self._device)
        flags[1] = ends
        return Step(observation, reward, flags[0], flags[1], final)

    def report(self) -> Report:
        """Returns an empty report: these tasks have no measure except the returns."""
        return Report()

    def close(self) -> None:
        """Has no resources to free: the tensors are freed with the simulator."""
