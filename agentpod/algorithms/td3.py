"""Owns twin delayed deep deterministic policy gradients (Fujimoto, van Hoof and Meger 2018, arXiv 1802.09477)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.ddpg import DDPG, DDPGHyperparameters
from agentpod.models.distributions import output_count


@dataclass(frozen=True)
class TD3Hyperparameters(DDPGHyperparameters):
    """What a specification can set."""

    algorithm = "td3"

    critics: int = 2
    """Critics in the ensemble; the least of their values is the target."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, in half ranges."""
    target_noise_clip: float = 0.5
    """That noise stays within this of 0."""
    policy_delay: int = 2
    """Gradient steps of the critics for each of the actor."""
    target_period: int = 2
    """Gradient steps from one move of the targets to the next."""


class TD3(DDPG):
    """DDPG with twin critics, noise on the target policy, and an actor that moves less often.

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
