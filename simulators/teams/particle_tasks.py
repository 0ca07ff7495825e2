"""Defines simple spread and simple tag of the multi-agent particle environments (Lowe et al. 2017, arXiv 1706.02275).

Observations and rewards are those of the package mpe2 (`simple_spread_v3`, `simple_tag_v3`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.options import parse_options
from simulators.teams.particles import DIRECTIONS, Bodies, Particles, ParticleTask

SENSITIVITY = 5.0
"""Force of a full action of an agent for which nothing else is stated."""
MOST_DISCS = 64
"""Most agents, or landmarks, of one environment."""
CATCH_REWARD = 10.0


@dataclass(frozen=True)
class SpreadOptions:
    """Options of a specification for `spread`."""

    agents: int = 3
    """Number of agents, and of landmarks."""
    local_ratio: float = 0.5
    """Weight of an agent's own collisions; the rest is the weight of the reward that all agents share."""
    max_episode_steps: int = 25
    """Steps of an episode."""
    continuous_actions: bool = False
    """Whether an action is a force instead of one of five directions."""


@dataclass(frozen=True)
class TagOptions:
    """Options of a specification for `tag`."""

    adversaries: int = 3
    """Number of learning agents, which chase."""
    prey: int = 1
    """Number of scripted agents, which flee."""
    obstacles: int = 2
    """Number of landmarks that block the way."""
    prey_policy: str = "flee"
    """What the prey does: `flee`, `random` or `still`."""
    max_episode_steps: int = 25
    """Steps of an episode."""
    continuous_actions: bool = False
    """Whether an action is a force instead of one of five directions."""


def make(id: str, count: int, options: Mapping[str, object], device: str) -> Particles:
    """Makes `count` environments.

    Args:
        id: `spread` or `tag`.
        count: Number of environments.
        options: Fields of SpreadOptions or TagOptions.
        device: Where they are stepped.

    Raises:
        InvalidArgument: An option is unknown, or its value cannot be used.
    """
    task: ParticleTask
    if id == "spread":
        spread = parse_options(id, options, SpreadOptions)
        _check_counts(id, {"agents": spread.agents}, spread.max_episode_steps)
        if not 0.0 <= spread.local_ratio <= 1.0:
            raise InvalidArgument(f"{id}: option 'local_ratio' must be in [0, 1], not {spread.local_ratio}")
        task, steps, continuous = Spread(spread), spread.max_episode_steps, spread.continuous_actions
    else:
        tag = parse_options(id, options, TagOptions)
        _check_counts(id, {"adversaries": tag.adversaries, "prey": tag.prey}, tag.max_episode_steps)
        if not 0 <= tag.obstacles <= MOST_DISCS:
            raise InvalidArgument(f"{id}: option 'obstacles' must be in [0, {MOST_DISCS}], not {tag.obstacles}")
        if tag.prey_policy not in PREY:
            raise InvalidArgument(
                f"{id}: option 'prey_policy' must be one of {', '.join(PREY)}, not {tag.prey_policy!r}"
            )
        task, steps, continuous = Tag(tag), tag.max_episode_steps, tag.continuous_actions
    return Particles(task, count, device, maximum_steps=steps, continuous=continuous)


def _check_counts(id: str, counts: Mapping[str, int], steps: int) -> None:
    for name, number in counts.items():
        if not 1 <= number <= MOST_DISCS:
            raise InvalidArgument(f"{id}: option {name!r} must be in [1, {MOST_DISCS}], not {number}")
    if steps < 1:
        raise InvalidArgument(f"{id}: option 'max_episode_steps' must be at least 1, not {steps}")


def _others(count: int, of: int) -> Tensor:
    """Returns for each of the first `of` of `count` discs the numbers of the other discs: [of, count - 1]."""
    numbers = torch.arange(count)
    return torch.stack([numbers[numbers != own] for own in range(of)]) if count > 1 else torch.zeros(of, 0).long()


def _relative(position: Tensor, own: Tensor, others: Tensor) -> Tensor:
    """Returns the places of other discs [A, K] seen from A agents at `own` [N, A, 2], flattened: [N, A, 2 K]."""
    return (position[:, others] - own.unsqueeze(2)).flatten(2)


class Spread:
    """Agents cover landmarks and avoid each other. See simulators.teams.particles.ParticleTask.

    The reward of agent i is

        (1 - local_ratio) (- sum over landmarks of the distance of the nearest agent) - local_ratio (collisions of i)
    """

    landmark_range = 1.0

    def __init__(self, options: SpreadOptions) -> None:
        count = self._count = options.agents
        self.agents = tuple(f"agent_{index}" for index in range(count))
        self.bodies = Bodies((0.15,) * count, (SENSITIVITY,) * count, (math.inf,) * count, landmarks=count)
        # Velocity, position, landmarks, the other agents, and what they say: always 0, as in the published task.
        self.observation_size = 4 + 2 * count + 4 * (count - 1)
        self._local_ratio = options.local_ratio

    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        """See ParticleTask."""
        count, own = self._count, position[:, : self._count]
        landmarks = torch.arange(count, 2 * count).expand(count, count)
        places = _relative(position, own, landmarks), _relative(position, own, _others(count, count))
        silence = own.new_zeros(len(own), count, 2 * (count - 1))
        return torch.cat((velocity, own, *places, silence), -1)

    def reward(self, position: Tensor) -> Tensor:
        """See ParticleTask."""
        own, landmarks = position[:, : self._count], position[:, self._count :]
        common = -torch.cdist(own, landmarks, compute_mode="donot_use_mm_for_euclid_dist").amin(1).sum(1, keepdim=True)
        near = torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist") < 2 * self.bodies.sizes[0]
        collisions = near.sum(2) - 1
        return (1 - self._local_ratio) * common - self._local_ratio * collisions

    def scripted(self, position: Tensor, velocity: Tensor, noise: Tensor) -> Tensor:
        """See ParticleTask; there are no scripted discs."""
        return velocity[:, :0]


class Tag:
    """Slower adversaries chase faster prey. See simulators.teams.particles.ParticleTask.

    The adversaries learn. Each receives 10 for every contact of any adversary with any prey.
    """

    landmark_range = 0.9

    def __init__(self, options: TagOptions) -> None:
        count, prey, obstacles = options.adversaries, options.prey, options.obstacles
        self.agents = tuple(f"adversary_{index}" for index in range(count))
        self.bodies = Bodies(
            (0.075,) * count + (0.05,) * prey + (0.2,) * obstacles,
            (3.0,) * count + (4.0,) * prey,
            (1.0,) * count + (1.3,) * prey,
            landmarks=obstacles,
        )
        self._count, self._movers = count, count + prey
        self.observation_size = 4 + 2 * obstacles + 2 * (self._movers - 1) + 2 * prey
        self._prey = PREY[options.prey_policy]

    def observe(self, position: Tensor, velocity: Tensor) -> Tensor:
        """See ParticleTask."""
        count, own = self._count, position[:, : self._count]
        obstacles = torch.arange(self._movers, position.shape[1]).expand(count, -1)
        places = _relative(position, own, obstacles), _relative(position, own, _others(self._movers, count))
        speeds = velocity[:, count:].flatten(1).unsqueeze(1).expand(-1, count, -1)
        return torch.cat((velocity[:, :count], own, *places, speeds), -1)

    def reward(self, position: Tensor) -> Tensor:
        """See ParticleTask."""
        own, prey = position[:, : self._count], position[:, self._count : self._movers]
        distance = torch.cdist(own, prey, compute_mode="donot_use_mm_for_euclid_dist")
        caught = (distance < self.bodies.sizes[0] + self.bodies.sizes[self._count]).sum((1, 2))
        return (CATCH_REWARD * caught).float().unsqueeze(1).expand(-1, self._count)

    def scripted(self, position: Tensor, velocity: Tensor, noise: Tensor) -> Tensor:
        """See ParticleTask."""
        return self._prey(position[:, self._count : self._movers], position[:, : self._count], noise)


def _flee(prey: Tensor, adversaries: Tensor, noise: Tensor) -> Tensor:
    """Runs from the adversaries, the near ones most, and back from the edge: one of four directions.

        w = sum over adversaries of (p - q) / |p - q|^2 - 4 sign(p) max(|p| - 0.7, 0)

    Args:
        prey: p, [N, P, 2].
        adversaries: q, [N, A, 2].
        noise: Not used.

    Returns:
        The direction of the larger element of w: [N, P, 2].
    """
    away = prey.unsqueeze(2) - adversaries.unsqueeze(1)
    wish = (away / away.square().sum(-1, keepdim=True).clamp(min=1e-6)).sum(2)
    wish = wish - 4.0 * prey.sign() * (prey.abs() - 0.7).clamp(min=0.0)
    larger = wish.abs() == wish.abs().amax(-1, keepdim=True)
    return wish.sign() * larger


def _random(prey: Tensor, adversaries: Tensor, noise: Tensor) -> Tensor:
    """Takes one of the five actions at random."""
    return prey.new_tensor(DIRECTIONS)[(noise * len(DIRECTIONS)).long()]


def _still(prey: Tensor, adversaries: Tensor, noise: Tensor) -> Tensor:
    """Exerts no force."""
    return torch.zeros_like(prey)


PREY: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"flee": _flee, "random": _random, "still": _still}
"""What prey does, by the name in a specification: a function of prey [N, P, 2], adversaries [N, A, 2], noise [N, P]."""
