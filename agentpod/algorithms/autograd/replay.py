"""Implements the base of user's algorithms that learn from a replay memory."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentpod.algorithms.autograd.learner import LossDifferentiation
from agentpod.algorithms.autograd.loss import LOSS
from agentpod.algorithms.autograd.settings import ReplaySettings
from agentpod.algorithms.fusible import Fusible
from agentpod.algorithms.off_policy import OffPolicy
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.transitions import TransitionBatch
from agentpod.seeding import derive_generator
from podrace.errors import DataLoss
from podrace.plugins.user_calls import calls_user_code, unusable
from simulators.base import Space

EXPLORATION = "exploration"


class ReplayAlgorithm(LossDifferentiation, OffPolicy):
    """Base class of user's algorithms that learn from a replay memory, by automatic differentiation of their loss.

        class Q(ReplayAlgorithm):
            settings_type, action_kinds, targets = QSettings, frozenset({"discrete"}), True

            def loss(self, batch):
                best = self.target_actor(batch.next_observation).max(-1).values
                values = self.actor(batch.observation).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
                return (values - batch.reward - batch.discount * best).square().mean()

    Batches are agentpod.experience.replay_buffer.TransitionBatch, with n-step rewards, and observations as networks
    receive them. The ratio of updates to data, targets, priorities, clipping, checkpoints, resume and fusion need no
    code. See agentpod.algorithms.base.Algorithm for the loop that uses it.
    """

    settings_type: ClassVar[type[Any]] = ReplaySettings
    METRICS = ("training_loss", "gradient_norm")
    hyperparameters: Any

    def exploration(self) -> float:
        """Returns the exploration rate of the heads `values` and `deterministic`. Default: 0.1."""
        return 0.1

    def __init__(self, observation_space: Space, action_space: Space, *arguments: Any, **settings: Any) -> None:
        """Creates new networks; see Algorithm."""
        self._measure(observation_space, action_space)
        super().__init__(observation_space, action_space, *arguments, **settings)

    def _build_networks(self, generator: torch.Generator) -> dict[str, Any]:
        self._trained_networks = self._build_trained_networks(self.policy, self._seed)
        self.policy = self._trained_networks.policy
        return {"networks": self._trained_networks}

    def update(self, experience: ReplayBuffer) -> dict[str, float]:
        """See OffPolicy.update."""
        try:
            return super().update(experience)
        except DataLoss as error:
            raise self._explained(error) from None

    def _noise(self, updates: int, generator: torch.Generator) -> Tensor:
        self.generator = derive_generator(self._device, self._seed, "loss", self.update_number)
        return torch.empty(updates, 0)

    def _gradient_step(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        metrics, errors = self._differentiate(batch)
        if errors is not None:
            if errors.shape != batch.reward.shape:
                problem = f"returned errors of shape {list(errors.shape)}, expected {list(batch.reward.shape)}"
                raise unusable(type(self), LOSS, problem)
            return metrics, errors
        if self.hyperparameters.prioritized:
            raise unusable(type(self), LOSS, "returned no errors, which prioritized = true needs: return loss, errors")
        return metrics, metrics[:0]

    def _set_exploration(self) -> None:
        cls = type(self)
        with calls_user_code(cls, EXPLORATION):
            rate: object = self.exploration()
        if not isinstance(rate, int | float) or not math.isfinite(rate):
            raise unusable(cls, EXPLORATION, f"returned {rate!r}, expected a finite number")
        self.policy.set_head_parameter("exploration", rate)

    def fusible(self) -> Fusible:
        """See Algorithm.fusible."""
        return self._fusible_networks(self._counts, {"observations": self._observations})
