"""Maintains running means and variances as sufficient statistics, which learners merge exactly."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from agentpod.returns import discounted_returns

VARIANCE_FLOOR = 1e-8
"""Added to a variance before its square root is divided by, so that a constant quantity stays finite."""


@dataclass(frozen=True)
class RunningMoments:
    """Number of samples, their mean and their sum of squared deviations; immutable.

    Attributes:
        count: [] float64, number of samples.
        mean: [*shape] float64.
        squared_deviation: [*shape] float64, sum of (x - mean)^2; "M2" in the literature.
    """

    count: Tensor
    mean: Tensor
    squared_deviation: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], device: torch.device | str = "cpu") -> "RunningMoments":
        """Returns the moments of no samples."""
        zeros = torch.zeros(shape, dtype=torch.float64, device=device)
        return cls(torch.zeros((), dtype=torch.float64, device=device), zeros, zeros.clone())

    @classmethod
    def of(cls, samples: Tensor) -> "RunningMoments":
        """Computes the moments of `samples` [B, *shape], any floating dtype, in float64."""
        samples = samples.double()
        mean = samples.mean(0)
        count = torch.tensor(float(len(samples)), dtype=torch.float64, device=samples.device)
        return cls(count, mean, (samples - mean).square_().sum(0))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """Combines the moments of two sets of samples (Chan, Golub and LeVeque 1979, equation 2.1)."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1.0)
        delta = other.mean - self.mean
        return RunningMoments(
            count,
            self.mean + delta * share,
            self.squared_deviation + other.squared_deviation + delta.square() * (self.count * share),
        )

    @property
    def variance(self) -> Tensor:
        """Population variance [*shape] float64; 1 without samples, so that it can be divided by."""
        return torch.where(self.count > 0, self.squared_deviation / self.count.clamp(min=1.0), 1.0)

    def flat(self) -> Tensor:
        """Returns count, means and squared deviations as one row [1 + 2 D] float64, with D = prod(shape)."""
        return torch.cat([self.count.view(1), self.mean.flatten(), self.squared_deviation.flatten()])

    @classmethod
    def from_flat(cls, row: Tensor, shape: tuple[int, ...]) -> "RunningMoments":
        """Reads back what `flat` returned; copies."""
        count, mean, squared_deviation = row.clone().split_with_sizes([1, *2 * [math.prod(shape)]])
        return cls(count.view(()), mean.view(shape), squared_deviation.view(shape))

    def state_dict(self, prefix: str) -> dict[str, Tensor]:
        """Returns copies of the three tensors, named `prefix.count`, `prefix.mean` and `prefix.squared_deviation`."""
        return {f"{prefix}.{name}": tensor.clone() for name, tensor in vars(self).items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor], prefix: str, device: torch.device | str) -> "RunningMoments":
        """Reads back what `state_dict` returned.

        Raises:
            KeyError: A name is missing.
        """
        names = ("count", "mean", "squared_deviation")
        return cls(*(state[f"{prefix}.{name}"].to(device, torch.float64, copy=True) for name in names))


class SharedMoments:
    """Moments of the samples of several learners. Between fusion rounds each learner adds only its own samples.

        moments.add(RunningMoments.of(samples))
        normalize_by(moments.total)
        ...  # in a fusion round, on every learner, with the fresh moments of all in rank order:
        moments.commit(moments.merged(fresh_of_all))

    Every sample is in the `fresh` moments of exactly one learner until it is in the `common` moments of all: no sample
    is counted twice.

    Attributes:
        common: Of the samples merged in fusion rounds; identical to the bit on all learners.
        fresh: Of this learner's samples since the last round.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        """Starts without samples."""
        self.common = self.fresh = self._empty = RunningMoments.empty(shape, device)

    @property
    def total(self) -> RunningMoments:
        """Moments of all samples that this learner has: common and fresh."""
        # To merge with no samples changes no bit.
        if self.common is self._empty:
            return self.fresh
        return self.common if self.fresh is self._empty else self.common.merge(self.fresh)

    def add(self, moments: RunningMoments) -> None:
        """Adds samples of this learner."""
        self.fresh = self.fresh.merge(moments)

    def merged(self, fresh: Iterable[RunningMoments]) -> RunningMoments:
        """Merges the common moments with the fresh ones of all learners, which are given in rank order."""
        return reduce(RunningMoments.merge, fresh, self.common)

    def commit(self, common: RunningMoments) -> None:
        """Replaces the common moments by the result of a round; it includes the fresh ones, which are cleared."""
        self.common, self.fresh = common, self._empty

    def state_dict(self, prefix: str) -> dict[str, Tensor]:
        """Returns copies of both, named `prefix.common.*` and `prefix.fresh.*`."""
        return {**self.common.state_dict(f"{prefix}.common"), **self.fresh.state_dict(f"{prefix}.fresh")}

    def load_state_dict(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Restores what `state_dict` returned.

        Raises:
            KeyError: A name is missing.
        """
        device = self._empty.count.device
        common, fresh = (
            RunningMoments.from_state_dict(state, f"{prefix}.{name}", device) for name in ("common", "fresh")
        )
        self.common, self.fresh = (moments if moments.count else self._empty for moments in (common, fresh))


@dataclass(frozen=True)
class RewardScale:
    """The divisor of rewards: the standard deviation of the running discounted returns; immutable.

    The mean is not subtracted, because that would change the optimal policy (Engstrom et al. 2020, section 3).

    Attributes:
        moments: Of the running discounted return over all steps so far.
        carry: [N] float64, running discounted returns of the unfinished episodes.
        fresh: The part of `moments` that the last `advance` added.
    """

    moments: RunningMoments
    carry: Tensor
    fresh: RunningMoments | None = None

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> "RewardScale":
        """Returns the scale before any reward; the first rollout determines the number of lanes."""
        return cls(RunningMoments.empty((), device), torch.zeros(0, dtype=torch.float64, device=device))

    def advance(self, reward: Tensor, done: Tensor, discount: float, counted: Tensor | None = None) -> "RewardScale":
        """Returns the scale after one more rollout: reward [T, N], done [T, N] bool.

        If the number of lanes changed, episodes cannot be matched to lanes, so all running returns restart at 0.
        `counted` [T, N] bool selects the steps whose running returns are added to the moments, at least one; None: all.
        """
        lanes = reward.shape[1]
        carry = self.carry if len(self.carry) == lanes else self.carry.new_zeros(lanes)
        running, carry = discounted_returns(reward, done, discount, carry)
        fresh = RunningMoments.of(running.flatten() if counted is None else running[counted])
        return RewardScale(self.moments.merge(fresh), carry, fresh)

    @property
    def deviation(self) -> Tensor:
        """[] float32, the divisor of rewards; 1 before any reward."""
        return (self.moments.variance + VARIANCE_FLOOR).sqrt().float()
