"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783) with the optimizer Lion (arXiv 2302.06675)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from agentpod.algorithms.autograd import (
    Batch,
    RolloutAlgorithm,
    RolloutSettings,
    generalized_advantages,
    hyperparameter,
)


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum (Chen et al. 2023, algorithm 2)."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, betas: tuple[float, float], decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Makes one step."""
        for group in self.param_groups:
            fast, slow = group["betas"]
            for one in group["params"]:
                momentum = self.state[one].setdefault("momentum", torch.zeros_like(one))
                direction = torch.lerp(one.grad, momentum, fast).sign_()
                one.mul_(1.0 - group["lr"] * group["decay"]).add_(direction, alpha=-group["lr"])
                momentum.lerp_(one.grad, 1.0 - slow)


@dataclass(frozen=True)
class LionSettings(RolloutSettings):
    """The inherited hyperparameters, those of the loss, and those of the optimizer."""

    learning_rate: float = 1e-3
    gae_lambda: float = 0.95
    entropy_coefficient: float = 0.001
    fast: float = hyperparameter(0.9, "weight of the momentum in a step", low=0.0, high=0.9999, scale="reverse_log")
    slow: float = hyperparameter(0.99, "decay of the momentum", low=0.0, high=0.9999, scale="reverse_log")
    decay: float = hyperparameter(0.0, "decay of the weights", low=0.0, high=10.0)


class LionActorCritic(RolloutAlgorithm):
    """Minimizes -mean(log pi(a | s) A) + mean((V - G)^2) / 2 - entropy_coefficient mean(H)."""

    settings_type = LionSettings

    def modules(self) -> Mapping[str, nn.Module]:
        """Returns the critic."""
        sizes = (self.observation_size, *self.hyperparameters.hidden_sizes)
        layers = [one for pair in pairwise(sizes) for one in (nn.Linear(*pair), nn.Tanh())]
        return {"critic": nn.Sequential(*layers, nn.Linear(sizes[-1], 1), nn.Flatten(0))}

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns Lion."""
        settings = self.hyperparameters
        return Lion(parameters, settings.learning_rate, (settings.fast, settings.slow), settings.decay)

    def prepare(self, rollout: Batch) -> Batch:
        """Adds advantages and returns [T, N] (Schulman et al. 2016, arXiv 1506.02438)."""
        settings, critic, reward = self.hyperparameters, self.module("critic"), rollout["reward"]
        value = critic(rollout["observation"].flatten(0, 1)).view_as(reward)
        following = critic(rollout["next_observation"].flatten(0, 1)).view_as(reward)
        ends, decay = (rollout["terminated"], rollout["truncated"]), (settings.discount, settings.gae_lambda)
        gain = generalized_advantages(reward, value, following, *ends, *decay)
        return rollout | {"advantage": (gain - gain.mean()) / (gain.std() + 1e-8), "return": gain + value}

    def loss(self, batch: Batch) -> Tensor:
        """Returns the loss []."""
        outputs = self.actor(batch["observation"])
        objective = (self.log_prob(outputs, batch["action"]) * batch["advantage"]).mean()
        objective += self.hyperparameters.entropy_coefficient * self.entropy(outputs)
        return 0.5 * (self.module("critic")(batch["observation"]) - batch["return"]).square().mean() - objective
