"""Implements twin delayed DDPG (TD3; Fujimoto, van Hoof and Meger 2018, arXiv 1802.09477)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.ddpg import DDPG, DDPGHyperparameters
from agentpod.models.distributions import output_count


@dataclass(frozen=True)
class TD3Hyperparameters(DDPGHyperparameters):
    """Hyperparameters of TD3."""

    algorithm = "td3"

    critics: int = 2
    """Critics in the ensemble; the target is the minimum of their values."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, in units of half the action range."""
    target_noise_clip: float = 0.5
    """Bound of the absolute value of that noise."""
    policy_delay: int = 2
    """Gradient steps of the critics per gradient step of the actor."""
    target_period: int = 2
    """Gradient steps between two updates of the target networks."""


class TD3(DDPG):
    """DDPG with twin critics, noise on the target policy's actions, and delayed updates of the actor.

    a' = clip(pi_target(s') + clip(noise, -target_noise_clip, target_noise_clip), -1, 1)
    """

    settings_type = TD3Hyperparameters

    def _noise(self, updates: int, generator: torch.Generator) -> Tensor:
        shape = (updates, self.hyperparameters.batch_size, output_count(self._action_space))
        return torch.randn(shape, generator=generator, device=generator.device)

    def _next_action(self, next_observation: Tensor, noise: Tensor) -> Tensor:
        bound = self.hyperparameters.target_noise_clip
        noise = (noise * self.hyperparameters.target_noise).clamp_(-bound, bound)
        return super()._next_action(next_observation, noise).add_(noise).clamp_(-1.0, 1.0)

    def _is_actor_due(self) -> bool:
        return bool((self.gradient_steps + 1) % self.hyperparameters.policy_delay == 0)
