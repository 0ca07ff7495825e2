"""Owns running means and variances, as sufficient statistics: what several learners saw merges exactly."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from agentpod.returns import discounted_returns

VARIANCE_FLOOR = 1e-8
"""Added to a variance before dividing by its root, so that a constant quantity stays finite."""


@dataclass(frozen=True)
class RunningMoments:
    """How many samples were seen, their mean and their summed squared deviations; immutable.

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
        """No samples yet."""
        zeros = torch.zeros(shape, dtype=torch.float64, device=device)
        return cls(torch.zeros((), dtype=torch.float64, device=device), zeros, zeros.clone())

    @classmethod
    def of(cls, samples: Tensor) -> "RunningMoments":
        """The moments of `samples`: [B, *shape], any floating dtype; summed in float64."""
        samples = samples.double()
        mean = samples.mean(0)
        count = torch.tensor(float(len(samples)), dtype=torch.float64, device=samples.device)
        return cls(count, mean, (samples - mean).square_().sum(0))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        """The moments of both sets of samples together (Chan, Golub and LeVeque 1979, equation 2.1)."""
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
        """Population variance [*shape] float64; 1 while there are no samples, so that it can be divided by."""
        return torch.where(self.count > 0, self.squared_deviation / self.count.clamp(min=1.0), 1.0)

    def flat(self) -> Tensor:
        """Count, means and deviations in one row, [1 + 2 D] float64, for D = prod(shape)."""
        return torch.cat([self.count.view(1), self.mean.flatten(), self.squared_deviation.flatten()])

    @classmethod
    def from_flat(cls, row: Tensor, shape: tuple[int, ...]) -> "RunningMoments":
        """Reads back what `flat` wrote, copying."""
        count, mean, squared_deviation = row.clone().split_with_sizes([1, *2 * [math.prod(shape)]])
        return cls(count.view(()), mean.view(shape), squared_deviation.view(shape))

    def state_dict(self, prefix: str) -> dict[str, Tensor]:
        """Copies of the three tensors, named `prefix.count`, `prefix.mean`, `prefix.squared_deviation`."""
        return {f"{prefix}.{name}": tensor.clone() for name, tensor in vars(self).items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor], prefix: str, device: torch.device | str) -> "RunningMoments":
        """Reads back what `state_dict` wrote.

        Raises:
            KeyError: A name is missing.
        """
        names = ("count", "mean", "squared_deviation")
        return cls(*(state[f"{prefix}.{name}"].to(device, torch.float64, copy=True) for name in names))


class SharedMoments:
    """The moments of what several learners saw, of whom each knows only its own samples since they last agreed.

        statistics.add(RunningMoments.of(samples))
        normalize_by(statistics.total)
        ...  # when the learners meet, each with what all of them bring, in the order of their ranks:
        statistics.agree(statistics.merged(fresh_of_all))

    Every sample is in exactly one learner's `fresh` until it is in everybody's `common`: nothing is counted twice.

    Attributes:
        common: Of the samples that all learners have agreed on: the same bits at each of them.
        fresh: Of this learner's own samples since.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        """No samples yet."""
        self.common = self.fresh = self._empty = RunningMoments.empty(shape, device)

    @property
    def total(self) -> RunningMoments:
        """Of all samples this learner knows of."""
        return self.common.merge(self.fresh)

    def add(self, moments: RunningMoments) -> None:
        """Adds samples of this learner's own."""
        self.fresh = self.fresh.merge(moments)

    def merged(self, fresh: Iterable[RunningMoments]) -> RunningMoments:
        """What is common once the fresh samples of all learners, in the order of their ranks, are."""
        return reduce(RunningMoments.merge, fresh, self.common)

    def commit(self, common: RunningMoments) -> None:
        """Goes on from what all learners have agreed on, which the own fresh samples are part of."""
        self.common, self.fresh = common, self._empty

    def state_dict(self, prefix: str) -> dict[str, Tensor]:
        """Copies of both, named `prefix.common.*` and `prefix.fresh.*`."""
        return {**self.common.state_dict(f"{prefix}.common"), **self.fresh.state_dict(f"{prefix}.fresh")}

    def load_state_dict(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Goes on from what `state_dict` wrote.

        Raises:
            KeyError: A name is missing.
        """
        device = self._empty.count.device
        self.common = RunningMoments.from_state_dict(state, f"{prefix}.common", device)
        self.fresh = RunningMoments.from_state_dict(state, f"{prefix}.fresh", device)


@dataclass(frozen=True)
class RewardScale:
    """What rewards are divided by: the deviation of the running discounted returns; immutable.

    The mean is not subtracted: that would change which behaviour is best (Engstrom et al. 2020, section 3).

    Attributes:
        moments: Of the running discounted return over all steps seen.
        carry: [N] float64, running discounted returns of the unfinished episodes.
        fresh: The part of `moments` that the last `advance` has added.
    """

    moments: RunningMoments
    carry: Tensor
    fresh: RunningMoments | None = None

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> "RewardScale":
        """No rewards yet; the first rollout says how many lanes there are."""
        return cls(RunningMoments.empty((), device), torch.zeros(0, dtype=torch.float64, device=device))

    def advance(self, reward: Tensor, done: Tensor, discount: float) -> "RewardScale":
        """The scale after one more rollout: reward [T, N], done [T, N] bool.

        Where the number of lanes changed, nothing tells which episode goes on where: all running returns begin at zero.
        """
        lanes = reward.shape[1]
        carry = self.carry if len(self.carry) == lanes else self.carry.new_zeros(lanes)
        running, carry = discounted_returns(reward, done, discount, carry)
        fresh = RunningMoments.of(running.flatten())
        return RewardScale(self.moments.merge(fresh), carry, fresh)

    @property
    def deviation(self) -> Tensor:
        """[] float32, to divide rewards by; 1 while there are none."""
        return (self.moments.variance + VARIANCE_FLOOR).sqrt().float()
