"""Owns running means and variances, as sufficient statistics: what several learners saw merges exactly."""

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class RewardScale:
    """What rewards are divided by: the deviation of the running discounted returns; immutable.

    The mean is not subtracted: that would change which behaviour is best (Engstrom et al. 2020, section 3).

    Attributes:
        moments: Of the running discounted return over all steps seen.
        carry: [N] float64, running discounted returns of the unfinished episodes.
    """

    moments: RunningMoments
    carry: Tensor

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
        return RewardScale(self.moments.merge(RunningMoments.of(running.flatten())), carry)

    def begin_episodes(self) -> "RewardScale":
        """The same scale without episodes under way."""
        return RewardScale(self.moments, self.carry.new_zeros(0))

    @property
    def deviation(self) -> Tensor:
        """[] float32, to divide rewards by; 1 while there are none."""
        return (self.moments.variance + VARIANCE_FLOOR).sqrt().float()
