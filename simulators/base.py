"""The interface every batched environment satisfies; knows no engine and no domain.

A *simulator* is the batched thing, an *environment* one lane of it. Whoever acts (a worker, an evaluator) sees only
what is named here.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Space:
    """What one environment observes, or what it accepts as one action."""

    kind: Literal["continuous", "discrete"]
    shape: tuple[int, ...]
    """Shape of one lane's element, without the batch dimension; () for discrete actions."""
    dtype: torch.dtype
    low: tuple[float, ...] | None = None
    """Lower bound of every element, flattened in C order (-inf where open); None when no element is bounded."""
    high: tuple[float, ...] | None = None
    """Upper bound of every element, flattened in C order (inf where open); None when no element is bounded."""
    n: int = 0
    """Number of discrete choices; 0 when continuous."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of N lanes brought.

    The tensors may alias the simulator's live buffers: they are valid until its next `step` or `reset`, so copy what
    has to outlive that, and write to none of them. *shape is `observation_space.shape`.
    """

    observation: Tensor
    """[N, *shape]. A lane whose episode has just ended is reset in the same step: this is then the first
    observation of its next episode."""
    reward: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool. The episode reached an end of its own: there is no future return to bootstrap."""
    truncated: Tensor
    """[N] bool. The episode was cut off (a time limit, the end of the data): bootstrap from `final_observation`.
    False wherever `terminated` is True."""
    final_observation: Tensor
    """[N, *shape]. The last observation of the episode; rows are meaningful only where terminated | truncated."""


@dataclass(frozen=True)
class Report:
    """The domain's own measures over finished episodes; empty where a domain has none."""

    metrics: dict[str, float] = field(default_factory=dict)
    traces: dict[str, list[float]] = field(default_factory=dict)
    """Series over one episode, all of one length."""
    labels: dict[str, list[str]] = field(default_factory=dict)
    """What the positions of the traces are called (dates, for example)."""


@runtime_checkable
class Simulator(Protocol):
    """N environments stepped as one; actions and observations are tensors on one device.

    A lane resets itself in the step that ends its episode, so the loop resets only once:

        simulator = make("CartPole-v1", num_environments=16)
        observation = simulator.reset(seed=7)
        for t in range(horizon):
            action = policy(observation)
            observations[t] = observation  # copy before the step: it may overwrite what it handed out
            step = simulator.step(action)
            rewards[t] = step.reward
            if (step.terminated | step.truncated).any():
                ...  # values of step.final_observation bootstrap the truncated lanes
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
        """Begins a new episode in every lane.

        Args:
            seed: At least 0. The same seed and actions give the same steps, whatever was stepped before; lanes
                differ among each other.

        Returns:
            The first observations, [N, *shape]; valid until the next `step` or `reset`.
        """
        ...

    def step(self, action: Tensor) -> Step:
        """Steps every lane once.

        Args:
            action: In the environment's own units. Continuous: [N, *action_space.shape] float32 within low and high.
                Discrete: [N] int64 in [0, n).
        """
        ...

    def report(self) -> Report:
        """The domain's measures over the episodes finished since the last reset."""
        ...

    def close(self) -> None:
        """Frees what the environments hold; the simulator is not used afterwards."""
        ...
