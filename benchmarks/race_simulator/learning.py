"""Simulates the learning of agents: hidden state, one quantum of training, and returns of evaluation episodes. Pure.

An agent has a skill and, in families with a plateau, a substitute for it. The skill approaches an asymptote that
depends on the distance of its hyperparameters from the best ones. The true return is the skill, or PLATEAU_RETURN times
the substitute if that is more, plus a fluctuation of the policy.

Every random number depends on the seed of the race and the agent (or the evaluation epoch) only. Contenders with the
same seed therefore share the task, the luck of the agent of each number, and the episodes.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray

from benchmarks.race_simulator.families import Family

DIMENSIONS = 3
PLATEAU_RETURN = 0.25
PLATEAU_PACE = 0.15
VALLEY_PACE = 0.3
FLUCTUATION, PERSISTENCE = 0.02, 0.5
"""Standard deviation of the innovations of a policy's fluctuation, and their autocorrelation."""
STEEP, FLAT = 1.25, 0.25
"""The pace at the fastest learning rate is STEEP + FLAT times the family's; far from it FLAT times."""
PACE_WIDTH = 0.3
FORGETTING = 0.12
"""Share of the excess over the asymptote that is lost in a quantum."""
DIVERGENCE_DISTANCE, DIVERGENCE = 0.4, 0.08
"""Learning rates this far beyond the best one collapse with this probability in a quantum."""
COLLAPSED = 0.4

Point = tuple[float, ...]
"""Position of an agent's hyperparameters in the unit cube."""


@dataclass(frozen=True)
class State:
    """The hidden state of an agent at a checkpoint."""

    skill: float = 0.0
    substitute: float = 0.0
    fluctuation: float = 0.0
    quanta: float = 0.0
    """Training so far, including that of its ancestors."""

    @property
    def true_return(self) -> float:
        """The expected return of the policy."""
        return max(self.skill, PLATEAU_RETURN * self.substitute) + self.fluctuation


@dataclass(frozen=True)
class Luck:
    """What the seed of an agent decides."""

    pace: float
    """Factor of its pace."""
    height: float
    """Factor of its asymptote."""
    dead: bool

    def inherited_by(self, child: "Luck") -> "Luck":
        """Returns the luck of a child: half of it is in the weights."""
        return Luck(math.sqrt(self.pace * child.pace), (self.height + child.height) / 2, self.dead)


@dataclass
class Learner:
    """An agent in training."""

    point: Point
    luck: Luck
    random: Random
    state: State


class World:
    """The task of one race, and all randomness of learning and evaluation."""

    def __init__(self, family: Family, seed: int, *, episodes: int, correlation: float) -> None:
        """Draws the task.

        Args:
            family: The family of the task.
            seed: Seed of the race.
            episodes: Number of evaluation episodes of a score.
            correlation: Share of the variance of an episode's return that all agents scored on it have in common.
        """
        self.family, self.seed, self._episodes, self._correlation = family, seed, episodes, correlation
        random = Random(f"{seed}/task")
        self.best = tuple(0.35 + 0.3 * random.random() for _ in range(DIMENSIONS))
        way = [random.gauss(0, 1) for _ in range(DIMENSIONS)]
        stretch = 0.8 * math.sqrt(DIMENSIONS) * family.default_distance / math.hypot(*way)
        self.default = tuple(_within(b + stretch * w, 0.02) for b, w in zip(self.best, way, strict=True))
        self._shared = cache(self._shared_difficulty)
        self._noise = np.random.default_rng([seed, 1])

    def fresh(self, number: int, point: Point) -> Learner:
        """Returns an agent with new networks."""
        random, luck = self._luck_of(number)
        return Learner(point, luck, random, State(substitute=float(self.family.valley)))

    def child(self, number: int, point: Point, luck: Luck, state: State) -> Learner:
        """Returns an agent that starts from a checkpoint of another."""
        random, own = self._luck_of(number)
        return Learner(point, luck.inherited_by(own), random, state)

    def continued(self, number: int, point: Point, luck: Luck, state: State) -> Learner:
        """Returns an agent that continues another unchanged."""
        return Learner(point, luck, Random(f"{self.seed}/agent/{number}"), state)

    def train(self, learner: Learner, speed: float = 1.0) -> None:
        """Trains for one quantum.

        Args:
            learner: The agent.
            speed: Training per quantum, compared with one pod.
        """
        family, state, random = self.family, learner.state, learner.random
        ahead = learner.point[0] - self.best[0]
        pace = (
            family.pace * learner.luck.pace * speed * (FLAT + STEEP * _bell((ahead - family.fast_ahead) / PACE_WIDTH))
        )
        substitute = state.substitute
        if family.plateau:
            greed = ahead + self.best[2] - learner.point[2]
            if family.valley:
                substitute *= math.exp(-VALLEY_PACE * speed * math.exp(-4 * greed))
            else:
                substitute += (1 - substitute) * min(1.0, PLATEAU_PACE * speed * math.exp(2 * greed))
            pace *= _plateau_pace(state.skill, greed, family.greed)
        skill = _approached(state.skill, self._asymptote(learner), pace, speed)
        if family.plateau:
            # Without a trace of skill, learning would never begin.
            skill = max(skill, 0.004)
        diverges = ahead > DIVERGENCE_DISTANCE and random.random() < DIVERGENCE
        if diverges or (family.collapse and random.random() < family.collapse * speed):
            skill *= COLLAPSED
        fluctuation = PERSISTENCE * state.fluctuation + FLUCTUATION * random.gauss(0, 1)
        learner.state = replace(
            state, skill=skill, substitute=substitute, fluctuation=fluctuation, quanta=state.quanta + speed
        )

    def returns(self, true_return: float, epoch: int, episodes: int = 0) -> NDArray[np.float64]:
        """Draws the returns of evaluation episodes: their mean has the family's standard error.

        Args:
            true_return: Expected return of the policy.
            epoch: Evaluation epoch; episode i of an epoch is the same for all agents.
            episodes: Number of episodes; 0: as of the world.
        """
        count = episodes or self._episodes
        deviation = self.family.noise * math.sqrt(self._episodes)
        own = self._noise.standard_normal(count)
        common = self._shared(epoch, count)
        return true_return + deviation * (
            math.sqrt(self._correlation) * common + math.sqrt(1 - self._correlation) * own
        )

    def _shared_difficulty(self, epoch: int, count: int) -> NDArray[np.float64]:
        return np.random.default_rng([self.seed, 2, epoch]).standard_normal(count)

    def _asymptote(self, learner: Learner) -> float:
        family, distance = self.family, [p - b for p, b in zip(learner.point, self.best, strict=True)]
        distance[0] += family.drift * learner.state.skill
        luck = learner.luck
        height = 0.05 + 0.95 * _bell(math.hypot(*distance) / family.width)
        return height * luck.height * (0.3 if luck.dead else 1.0)

    def _luck_of(self, number: int) -> tuple[Random, Luck]:
        family, random = self.family, Random(f"{self.seed}/agent/{number}")
        pace = math.exp(family.pace_luck * random.gauss(0, 1))
        height = 1 - min(0.9, family.asymptote_luck * abs(random.gauss(0, 1)))
        return random, Luck(pace, height, random.random() < family.dead)


def _approached(skill: float, asymptote: float, pace: float, speed: float) -> float:
    gap = asymptote - skill
    return skill + gap * (1 - math.exp(-pace) if gap > 0 else min(1.0, FORGETTING * speed))


def _plateau_pace(skill: float, greed: float, limit: float) -> float:
    """Returns the factor of the pace on a plateau: slow at first, slower for greedy values."""
    hindered = 0.15 if greed > limit else 0.5 if greed > limit - 0.15 else 1.0
    return 2.2 * min(1.0, (skill + 0.02) / 0.2) * hindered


def _bell(x: float) -> float:
    return math.exp(-0.5 * x * x)


def _within(value: float, margin: float) -> float:
    return min(max(value, margin), 1 - margin)
