"""Implements advantage actor-critic (A2C; Mnih et al. 2016, arXiv 1602.01783, in its synchronous form)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.on_policy import (
    OnPolicy,
    OnPolicySettings,
    backpropagate_policy,
    backpropagate_value,
    standardize,
)
from agentpod.experience.rollout_batch import RolloutBatch


@dataclass(frozen=True)
class A2CHyperparameters(OnPolicySettings):
    """Hyperparameters of A2C. Rollouts are short, because each is used for a single gradient step."""

    algorithm = "a2c"

    learning_rate: float = 1e-3
    """Step size of Adam."""
    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation; 1 gives the paper's n-step advantages."""
    horizon: int = 8
    """Steps of each environment between two updates."""
    normalize_advantages: bool = False
    """Whether advantages are standardized within each rollout."""


class A2C(OnPolicy):
    """Makes one gradient step over each whole rollout; see agentpod.algorithms.base.Algorithm for the loop.

    The loss (Mnih et al. 2016, section 4, supplementary algorithm S3), with A held fixed:

        -mean(log pi(a|s) A) - entropy_coefficient mean(H) + value_coefficient mean((V - R)^2)
    """

    settings_type = A2CHyperparameters
    METRICS = ("value_loss", "policy_loss", "entropy", "gradient_norm")

    def _train(self, batch: RolloutBatch) -> Tensor:
        return self._step(batch).unsqueeze(0)

    def _gradient_step(self, minibatch: RolloutBatch) -> Tensor:
        settings = self.hyperparameters
        advantage = standardize(minibatch.advantage) if settings.normalize_advantages else minibatch.advantage

        def objective(log_prob: Tensor) -> tuple[Tensor, Tensor]:
            return log_prob * advantage, advantage

        def error(value: Tensor) -> tuple[Tensor, Tensor]:
            difference = value - minibatch.target
            return difference.square(), difference * 2.0

        value_loss = backpropagate_value(minibatch, self._networks, error, settings.value_coefficient)
        _, surrogate, entropy = backpropagate_policy(minibatch, self._networks, objective, settings.entropy_coefficient)
        return torch.stack((value_loss, -surrogate, entropy, self._optimizer.step()))
