"""Defines the interface that every batched environment satisfies; depends on no engine and no domain.

A *simulator* is the batch; an *environment* is one lane of it. Workers and evaluators use only what is defined here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podrace.spaces.entries import Entry

Kind = Literal["continuous", "discrete", "multi_discrete", "multi_binary", "composite"]


@dataclass(frozen=True)
class Space:
    """What one environment observes, or what it accepts as an action."""

    kind: Kind
    """`multi_discrete` (a choice for each element) and `multi_binary` (0 or 1 for each) are actions; `composite` is an
    observation that consists of `entries`."""
    shape: tuple[int, ...]
    """Shape of one lane's element, without the batch dimension; () for discrete actions, one dimension if composite."""
    dtype: torch.dtype
    low: tuple[float, ...] | None = None
    """Lower bound of every element, flattened in C order (-inf where unbounded); None when no element is bounded."""
    high: tuple[float, ...] | None = None
    """Upper bound of every element, flattened in C order (inf where unbounded); None when no element is bounded."""
    n: int = 0
    """Number of choices of a discrete space. Of a continuous observation that is one-hot: the number of values that the
    environment can observe. 0 otherwise."""
    choices: tuple[int, ...] = ()
    """Number of choices of each element of a multi-discrete space, flattened in C order; () otherwise."""
    entries: tuple[Entry, ...] = ()
    """Entries of a composite observation, whose elements lie one after another; () otherwise."""
    agents: tuple[str, ...] = ()
    """Only of observations of an environment with several agents: their names. Lane j is that of agent j % A in
    environment j // A; see `simulators.teams`."""

    @property
    def lanes(self) -> int:
        """Number of lanes that one environment has: one for each of its agents."""
        return max(1, len(self.agents))

    @property
    def most_choices(self) -> int:
        """Largest number of choices that an element of an action has; 0 if it is continuous."""
        return 2 if self.kind == "multi_binary" else max(self.choices, default=self.n)


@dataclass(frozen=True, slots=True)
class Step:
    """The results of one step of N lanes.

    The tensors may alias the simulator's live buffers. They are valid until its next `step` or `reset`: copy what is
    needed longer, and never write to them. *shape is `observation_space.shape`.
    """

    observation: Tensor
    """[N, *shape]. A lane whose episode has just ended is reset in the same step; its row is then the first
    observation of the next episode."""
    reward: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool. The episode reached a terminal state: there is no future return to bootstrap."""
    truncated: Tensor
    """[N] bool. The episode was cut off (by a time limit or the end of the data): bootstrap from `final_observation`.
    False wherever `terminated` is True."""
    final_observation: Tensor
    """[N, *shape]. The last observation of the episode; rows are meaningful only where terminated | truncated."""


@dataclass(frozen=True)
class Report:
    """Domain-specific measures over finished episodes; empty where a domain has none."""

    metrics: dict[str, float] = field(default_factory=dict)
    traces: dict[str, list[float]] = field(default_factory=dict)
    """Series over one episode, all of the same length."""
    labels: dict[str, list[str]] = field(default_factory=dict)
    """Names of the positions in the traces (dates, for example)."""
    episode_metrics: dict[str, list[float]] = field(default_factory=dict)
    """Measures of single episodes, by name: for each lane, of the first episode that it has finished since the last
    reset, or NaN if it has not finished any. `evaluation.objective` can name one of them as the score of an episode;
    the higher, the better. The name `fold` is reserved for the number of the part of the data that the episode is in,
    from 1."""


@runtime_checkable
class Simulator(Protocol):
    """N environments stepped as one; actions and observations are tensors on one device.

    A lane resets itself in the step that ends its episode, so the loop resets only once:

        simulator = make("CartPole-v1", num_environments=16)
        observation = simulator.reset(seed=7)
        for t in range(horizon):
            action = policy(observation)
            observations[t] = observation  # copy before the step: the step may overwrite this tensor
            step = simulator.step(action)
            rewards[t] = step.reward
            if (step.terminated | step.truncated).any():
                ...  # bootstrap truncated lanes from the values of step.final_observation
            observation = step.observation
        simulator.close()

    Attributes:
        observation_space: What each lane observes.
        action_space: What each lane accepts.
        count: Number of lanes, N.
    """

    observation_space: Space
    action_space: Space
    count: int

    def reset(self, seed: int) -> Tensor:
        """Starts a new episode in every lane.

        Args:
            seed: At least 0. The same seed and actions give the same steps, whatever was stepped before; lanes
                differ from each other. In the first episode after a reset, what a lane does should not depend on the
                actions of other lanes, so that policies can be compared on the same episode. How an episode begins may
                depend on the number of lanes.

        Returns:
            The first observations, [N, *shape]; valid until the next `step` or `reset`.
        """
        ...

    def step(self, action: Tensor) -> Step:
        """Steps every lane once.

        Args:
            action: In the environment's own units. Continuous: [N, *action_space.shape] float32 within low and high.
                Discrete: [N] int64 in [0, n). Multi-discrete and multi-binary: [N, *action_space.shape] int64.
        """
        ...

    def report(self) -> Report:
        """Returns the domain's measures over the episodes finished since the last reset."""
        ...

    def close(self) -> None:
        """Frees the resources of the environments; the simulator must not be used afterwards."""
        ...


@runtime_checkable
class SingleEpisodes(Protocol):
    """A simulator whose lanes can rest after one episode, so that an evaluation computes no steps that it ignores."""

    def reset_for_single_episodes(self, seed: int) -> Tensor:
        """As `reset`, but a lane whose episode has ended rests until the next reset.

        Further steps return its last observation and the reward 0, and do not end an episode.
        """
        ...


class Opponent(Protocol):
    """Moves for the opponent in some lanes of a game."""

    def act(self, observation: Tensor, turn: int) -> Tensor:
        """Returns the moves [K] for K lanes.

        Args:
            observation: What the opponent observes, [K, *shape].
            turn: Number of the turn since the last reset of the simulator. Sampled moves depend on it and not on how
                often `act` was called, so that a game does not depend on those of other lanes.
        """
        ...


@runtime_checkable
class AcceptsOpponents(Protocol):
    """A simulator of games of two players that lets policies play against the agent; see `simulators.games`.

    An opponent has the same observations and actions as the agent.
    """

    def seat_opponents(self, opponents: Sequence[Opponent | None]) -> None:
        """Replaces the opponents, from the next step or reset on, also in games that have begun.

        Args:
            opponents: Lane j plays against number j mod K of these K opponents. None is the built-in opponent of the
                simulator, which also plays if there are none.
        """
        ...


def all_finite(numbers: NDArray[Any]) -> bool:
    """Whether all elements of an array [N] are finite.

    The fast path sums their squares, which is finite unless an element is not or exceeds 1e19 (1e154 in float64);
    only then is each element checked.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(numbers.dot(numbers)):
            return True
    return bool(np.isfinite(numbers).all())
