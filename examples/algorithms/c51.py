"""C51: learns the distribution of returns over fixed atoms (Bellemare et al. 2017, arXiv 1707.06887, algorithm 1)."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from agentpod.algorithms.autograd import (
    ReplayAlgorithm,
    ReplaySettings,
    TransitionBatch,
    hyperparameter,
    linear_schedule,
)


@dataclass(frozen=True)
class C51Settings(ReplaySettings):
    """Hyperparameters of C51; three of them are also arguments of its network."""

    network_options = ("atoms", "lowest", "highest")

    network_class: str = f"python:{__name__}:ReturnDistribution"
    hidden_sizes: tuple[int, ...] = (128, 128)
    learning_rate: float = 5e-4
    horizon: int = 8
    n_step: int = 5
    batch_size: int = 128
    updates_per_step: float = 0.25
    target_rate: float = 0.01
    maximum_gradient_norm: float = 10.0
    exploration_steps: int = 20_000
    atoms: int = hyperparameter(51, "atoms of the distribution", low=2, high=1000, structural=True)
    lowest: float = hyperparameter(0.0, "smallest return", low=-1e6, high=1e6, structural=True)
    highest: float = hyperparameter(100.0, "largest return", low=-1e6, high=1e6, structural=True)


class ReturnDistribution(nn.Module):
    """Maps observations [B, D] to the mean return of each of n choices [B, n]; `logits` has their distributions."""

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden_sizes: tuple[int, ...], **support: float) -> None:
        super().__init__()
        atoms, sizes = int(support["atoms"]), (*shape, *hidden_sizes)
        layers = [one for pair in pairwise(sizes) for one in (nn.Linear(*pair), nn.ReLU())]
        self.body = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs * atoms), nn.Unflatten(1, (outputs, atoms)))
        self.register_buffer("support", torch.linspace(support["lowest"], support["highest"], atoms), persistent=False)

    def logits(self, observation: Tensor) -> Tensor:
        """Returns the logits of the atoms [B, n, K]."""
        return self.body(observation)

    def forward(self, observation: Tensor) -> Tensor:
        """Returns the mean returns, from which the head `values` chooses."""
        return (self.logits(observation).softmax(-1) * self.support).sum(-1)


class C51(ReplayAlgorithm):
    """Minimizes the cross-entropy between the distribution of a choice and its projected target."""

    settings_type, action_kinds, targets = C51Settings, frozenset({"discrete"}), True

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        """Returns the loss [], and the cross-entropy of each step [B], by which steps are prioritized."""
        rows, support = torch.arange(len(batch.reward)), self.policy_network.support
        with torch.no_grad():
            best = self.target_actor(batch.next_observation).argmax(-1)
            following = self.target_policy_network.logits(batch.next_observation)[rows, best].softmax(-1)
            returns = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * support
            place = (returns.clamp(support[0], support[-1]).unsqueeze(1) - support.unsqueeze(-1)).abs()
            share = (1.0 - place / (support[1] - support[0])).clamp(min=0.0)
            wanted = (share * following.unsqueeze(1)).sum(-1)
        found = self.policy_network.logits(batch.observation)[rows, batch.action].log_softmax(-1)
        error = -(wanted * found).sum(-1)
        return (error * batch.weight).mean(), error

    def exploration(self) -> float:
        """Returns epsilon."""
        return linear_schedule(1.0, 0.05, self.environment_steps / self.hyperparameters.exploration_steps)
