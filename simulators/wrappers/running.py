"""Normalization by running statistics of what one simulator has shown; all of them stay on its device.

The statistics belong to one simulator: every worker has its own, an evaluation begins without any, and `reset` begins
anew, because the same seed is to give the same steps. Where a network can normalize (`normalize_observations` of its
specification) prefer that: there they are shared, kept with the weights and used by evaluations.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podrace.errors import InvalidArgument
from simulators.base import Simulator, Space, Step
from simulators.wrappers.wrapper import Wrapper

VARIANCE_FLOOR = 1e-8
"""Added to a variance before dividing by its root, so that a constant quantity stays finite."""


@dataclass(frozen=True)
class ObservationOptions:
    """What a specification can set."""

    clip: float = 10.0
    """Normalized elements are clipped to [-clip, clip]."""


@dataclass(frozen=True)
class RewardOptions:
    """What a specification can set."""

    discount: float = 0.99
    """Of the return whose deviation rewards are divided by."""
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
        """None seen yet."""
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squared_deviation = torch.zeros_like(self.mean)
        self.count = 0

    def clear(self) -> None:
        """Forgets all rows."""
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
        """[*shape] float64, to divide by; 1 while no rows are known."""
        if not self.count:
            return torch.ones_like(self.mean)
        return (self.squared_deviation / self.count + VARIANCE_FLOOR).sqrt()


class NormalizeObservations(Wrapper):
    """Observations minus their running mean, over their running deviation, clipped.

    The observations that are acted upon are counted, each once: those of `reset`, and `observation` of each step. A
    final observation, on which nobody acts, is normalized by the same statistics and not counted.

    Attributes:
        moments: Of the observations seen since the last reset.
    """

    def __init__(self, inner: Simulator, options: ObservationOptions, owner: str, device: torch.device) -> None:
        """Wraps.

        Raises:
            InvalidArgument: The observations are pictures, or `clip` is not positive.
        """
        super().__init__(inner)
        space = inner.observation_space
        if space.dtype != torch.float32:
            raise InvalidArgument(f"{owner}: the observations are bytes, which networks for pictures scale themselves")
        self._clip = _positive(owner, "clip", options.clip)
        elements = self._elements(space)
        self.observation_space = replace(space, low=(-self._clip,) * elements, high=(self._clip,) * elements)
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
    """Rewards over the running deviation of the discounted return, clipped.

    The mean is not subtracted: that would change which behaviour is best (Engstrom et al. 2020, "Implementation
    matters in deep policy gradients", section 3). The returns that a tournament shows are then those of normalized
    rewards.

    Attributes:
        moments: Of the running returns of all lanes and steps since the last reset.
    """

    def __init__(self, inner: Simulator, options: RewardOptions, owner: str, device: torch.device) -> None:
        """Wraps.

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
        # R_t = discount R_(t-1) + r_t, which begins at zero in every episode.
        self._returns.mul_(self._discount).add_(step.reward)
        self.moments.add(self._returns)
        self._returns.masked_fill_(step.terminated | step.truncated, 0.0)
        reward = (step.reward / self.moments.deviation).clamp_(-self._clip, self._clip)
        return replace(step, reward=reward.float())


def _positive(owner: str, name: str, value: float) -> float:
    if not value > 0:
        raise InvalidArgument(f"{owner}: option {name!r} must be positive, not {value}")
    return value
