"""Normalizes observations and rewards by running statistics of one simulator, kept on its device.

The statistics belong to one simulator: every worker has its own, an evaluation starts without any, and `reset` clears
them, because the same seed must give the same steps. If the network can normalize (`normalize_observations` of its
specification), prefer that: its statistics are shared, stored with the weights and used in evaluations.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Simulator, Space, Step
from simulators.wrappers.wrapper import Wrapper, refuse_composite

VARIANCE_FLOOR = 1e-8
"""Added to a variance before its square root is taken, so that dividing by it stays finite for a constant."""


@dataclass(frozen=True)
class ObservationOptions:
    """Options of a specification."""

    clip: float = 10.0
    """Normalized elements are clipped to [-clip, clip]."""


@dataclass(frozen=True)
class RewardOptions:
    """Options of a specification."""

    discount: float = 0.99
    """Discount of the return by whose deviation rewards are divided."""
    clip: float = 10.0
    """Normalized rewards are clipped to [-clip, clip]."""


class Moments:
    """Mean and variance of all rows seen.

    Attributes:
        count: Rows seen.
        mean: [*shape] float64.
        squared_deviation: [*shape] float64, sum of (x - mean)^2.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        """Creates statistics without rows."""
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squared_deviation = torch.zeros_like(self.mean)
        self.count = 0

    def clear(self) -> None:
        """Removes all rows."""
        self.count = 0
        self.mean.zero_()
        self.squared_deviation.zero_()

    def add(self, rows: Tensor) -> None:
        """Adds rows [N, *shape] (Chan, Golub and LeVeque 1979, equation 2.1)."""
        rows = rows.double()
        mean = rows.mean(0)
        before, self.count = self.count, self.count + len(rows)
        share, delta = len(rows) / self.count, mean - self.mean
        self.squared_deviation += (rows - mean).square().sum(0) + delta.square() * (before * share)
        self.mean += delta * share

    @property
    def deviation(self) -> Tensor:
        """The divisor, [*shape] float64; 1 as long as there are no rows."""
        if not self.count:
            return torch.ones_like(self.mean)
        return (self.squared_deviation / self.count + VARIANCE_FLOOR).sqrt()


class NormalizeObservations(Wrapper):
    """Observations minus their running mean, over their running deviation, clipped.

    The statistics count every observation on which an action is chosen once: those of `reset`, and `observation` of
    each step. A final observation, on which no action is chosen, is normalized by the same statistics but not counted.

    Attributes:
        moments: Statistics of the observations since the last reset.
    """

    def __init__(self, inner: Simulator, options: ObservationOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: The observations are pictures or composite, or `clip` is not positive.
        """
        super().__init__(inner)
        space = inner.observation_space
        refuse_composite(space, owner)
        if space.dtype != torch.float32:
            raise InvalidArgument(f"{owner}: the observations are bytes, which networks for pictures scale themselves")
        self._clip = _positive(owner, "clip", options.clip)
        elements = self._elements(space)
        self.observation_space = replace(space, low=(-self._clip,) * elements, high=(self._clip,) * elements, n=0)
        self.moments = Moments(space.shape, device)

    @staticmethod
    def _elements(space: Space) -> int:
        return torch.Size(space.shape).numel()

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self.moments.clear()
        observation = self.inner.reset(seed)
        self.moments.add(observation)
        return self._normalized(observation, self.moments.deviation)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = self.inner.step(action)
        self.moments.add(step.observation)
        deviation = self.moments.deviation
        return replace(
            step,
            observation=self._normalized(step.observation, deviation),
            final_observation=self._normalized(step.final_observation, deviation),
        )

    def _normalized(self, observation: Tensor, deviation: Tensor) -> Tensor:
        return ((observation - self.moments.mean) / deviation).clamp_(-self._clip, self._clip).float()


class NormalizeRewards(Wrapper):
    """Rewards divided by the running deviation of the discounted return, clipped; not in evaluations.

    The mean is not subtracted, because that would change which behavior is optimal (Engstrom et al. 2020,
    "Implementation matters in deep policy gradients", section 3). Scores of evaluations are returns of the environment
    itself.

    Attributes:
        moments: Statistics of the discounted returns of all lanes and steps since the last reset.
    """

    def __init__(self, inner: Simulator, options: RewardOptions, owner: str, device: torch.device) -> None:
        """Wraps a simulator.

        Raises:
            InvalidArgument: `clip` is not positive, or `discount` not in [0, 1].
        """
        super().__init__(inner)
        if not 0 <= options.discount <= 1:
            raise InvalidArgument(f"{owner}: option 'discount' must be in [0, 1], not {options.discount}")
        self._clip, self._discount = _positive(owner, "clip", options.clip), options.discount
        self.moments = Moments((), device)
        self._returns = torch.zeros(self.count, dtype=torch.float64, device=device)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        self.moments.clear()
        self._returns.zero_()
        return self.inner.reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        step = self.inner.step(action)
        # R_t = discount R_(t-1) + r_t, starting at zero in every episode.
        self._returns.mul_(self._discount).add_(step.reward)
        self.moments.add(self._returns)
        self._returns.masked_fill_(step.terminated | step.truncated, 0.0)
        reward = (step.reward / self.moments.deviation).clamp_(-self._clip, self._clip)
        return replace(step, reward=reward.float())


def _positive(owner: str, name: str, value: float) -> float:
    if not value > 0:
        raise InvalidArgument(f"{owner}: option {name!r} must be positive, not {value}")
    return value
