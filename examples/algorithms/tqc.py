"""Truncated quantile critics (TQC; Kuznetsov et al. 2020, arXiv 2005.04269)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from agentpod.algorithms.autograd import ReplayAlgorithm, ReplaySettings, TransitionBatch, hyperparameter


@dataclass(frozen=True)
class TQCSettings(ReplaySettings):
    """Hyperparameters of TQC."""

    head = "squashed"

    critics: int = hyperparameter(2, "critics in the ensemble", low=1, high=100, structural=True)
    quantiles: int = hyperparameter(25, "quantiles of each critic", low=2, high=1000, structural=True)
    dropped: int = hyperparameter(2, "largest quantiles to drop, for each critic", low=0, high=1000)
    temperature: float = hyperparameter(
        0.1, "weight of the entropy", low=1e-6, high=100.0, scale="log", search=(0.01, 0.5)
    )


class Critics(nn.Module):
    """Maps observations [B, D] and actions [B, A] to the quantiles [B, C, M] of C critics."""

    def __init__(self, inputs: int, hidden_sizes: tuple[int, ...], critics: int, quantiles: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(_perceptron((inputs, *hidden_sizes), quantiles) for _ in range(critics))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Returns the quantiles."""
        inputs = torch.cat((observation, action), -1)
        return torch.stack([member(inputs) for member in self.members], 1)


def _perceptron(sizes: tuple[int, ...], outputs: int) -> nn.Sequential:
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


class TQC(ReplayAlgorithm):
    """Trains critics by quantile regression on the smallest quantiles of all critics together, and a soft actor."""

    settings_type, action_kinds, targets = TQCSettings, frozenset({"continuous"}), True

    def modules(self) -> Mapping[str, nn.Module]:
        """Returns the critics."""
        settings = self.hyperparameters
        sizes = self.observation_size + self.action_size, settings.hidden_sizes
        return {"critics": Critics(*sizes, settings.critics, settings.quantiles)}

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        """Returns the sum of the losses of critics (equation 9) and actor (equation 11), and errors [B]."""
        settings = self.hyperparameters
        with torch.no_grad():
            action, log_prob = self.squashed_sample(self.actor(batch.next_observation))
            quantiles = self.target("critics")(batch.next_observation, action).flatten(1).sort(-1).values
            kept = quantiles[:, : quantiles.shape[1] - settings.dropped * settings.critics]
            soft = kept - settings.temperature * log_prob.unsqueeze(-1)
            wanted = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * soft
        found = self.module("critics")(batch.observation, batch.action)
        action, log_prob = self.squashed_sample(self.actor(batch.observation))
        value = self.frozen("critics", batch.observation, action).mean((1, 2))
        actor_loss = (settings.temperature * log_prob - value).mean()
        return quantile_huber(found, wanted, batch.weight) + actor_loss, found.mean((1, 2)) - wanted.mean(1)


def quantile_huber(found: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """Returns the quantile Huber loss [] of quantiles [B, C, M] for targets [B, K] (equation 10), weighted by [B]."""
    error = wanted[:, None, None, :] - found.unsqueeze(-1)
    level = (torch.arange(found.shape[-1], device=found.device) + 0.5) / found.shape[-1]
    huber = torch.where(error.abs() > 1.0, error.abs() - 0.5, 0.5 * error.square())
    each = (level.unsqueeze(-1) - (error < 0).float()).abs() * huber
    return (each.mean((2, 3)).sum(1) * weight).mean()
