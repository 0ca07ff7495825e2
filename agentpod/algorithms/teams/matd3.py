"""Implements multi-agent TD3 (MATD3; Ackermann et al. 2019, arXiv 1910.01465)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.algorithms.td3 import TD3, TD3Hyperparameters
from agentpod.algorithms.teams.maddpg import MADDPG, TeamCriticHyperparameters
from agentpod.models.distributions import output_count


@dataclass(frozen=True)
class MATD3Hyperparameters(TeamCriticHyperparameters, TD3Hyperparameters):
    """Hyperparameters of MATD3: those of MADDPG for continuous actions, and those that TD3 adds to DDPG."""

    algorithm = "matd3"

    critics: int = 2
    """Critics in the ensemble; the target is the minimum of their values."""
    target_period: int = 2
    """Gradient steps between two updates of the target networks."""


class MATD3(MADDPG, TD3):
    """MADDPG with twin critics, noise on the target policies' actions, and delayed updates of the actors; see TD3."""

    settings_type = MATD3Hyperparameters
    action_kinds = frozenset({"continuous"})

    def _noise(self, updates: int, generator: torch.Generator) -> Tensor:
        shape = (updates, self.hyperparameters.batch_size * self._agents, output_count(self._action_space))
        return torch.randn(shape, generator=generator, device=generator.device)
