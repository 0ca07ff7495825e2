"""REINFORCE with the mean return as its baseline (Williams 1992, Machine Learning 8, equation 11)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.autograd import (
    Batch,
    RolloutAlgorithm,
    RolloutSettings,
    generalized_advantages,
    hyperparameter,
)


@dataclass(frozen=True)
class ReinforceSettings(RolloutSettings):
    """The inherited hyperparameters, two of them with another default, and one more."""

    learning_rate: float = 3e-3
    horizon: int = 256
    entropy_weight: float = hyperparameter(
        0.001, "weight of the entropy bonus", low=0.0, high=1.0, scale="log", search=(1e-5, 0.02, 0.1)
    )


class Reinforce(RolloutAlgorithm):
    """Minimizes -mean(log pi(a | s) (G - mean G)) - entropy_weight mean(H)."""

    settings_type = ReinforceSettings

    def prepare(self, rollout: Batch) -> Batch:
        """Adds the discounted reward to go, from each step [T, N] to the end of its episode or of the rollout."""
        nothing = torch.zeros_like(rollout["reward"])
        ends = rollout["terminated"], rollout["truncated"]
        gains = generalized_advantages(rollout["reward"], nothing, nothing, *ends, self.hyperparameters.discount, 1.0)
        return rollout | {"gain": (gains - gains.mean()) / (gains.std() + 1e-8)}

    def loss(self, batch: Batch) -> Tensor:
        """Returns the loss []."""
        outputs = self.actor(batch["observation"])
        objective = (self.log_prob(outputs, batch["action"]) * batch["gain"]).mean()
        return -objective - self.hyperparameters.entropy_weight * self.entropy(outputs)
