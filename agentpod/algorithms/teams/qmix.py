"""Implements QMIX (Rashid et al. 2018, arXiv 1803.11485)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from agentpod.algorithms.teams.vdn import VDN, VDNHyperparameters
from agentpod.models.cnn import NO_TORSO
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.specification.declaration import hyperparameter


@dataclass(frozen=True)
class QMIXHyperparameters(VDNHyperparameters):
    """Hyperparameters of QMIX: those of VDN, and the size of the mixing network."""

    algorithm = "qmix"

    mixing_size: int = hyperparameter(
        32, "units of the hidden layer of the mixing network", low=1, high=10_000, structural=True
    )
    """Units of the hidden layer of the mixing network."""


class Mixer(nn.Module):
    """Combines the values of A agents, depending on the state, and increasing in each of them.

        h = elu(|W_1(s)| q + b_1(s)),  Q = |w_2(s)| h + b_2(s)

    The weights are linear functions of the state, and b_2 has a hidden layer (Rashid et al. 2018, section 4).
    """

    def __init__(self, agents: int, state_size: int, size: int) -> None:
        """Draws weights for states of so many numbers, and a hidden layer of `size` units."""
        super().__init__()
        self._agents, self._size = agents, size
        self.first_weights, self.first_bias = nn.Linear(state_size, agents * size), nn.Linear(state_size, size)
        self.last_weights = nn.Linear(state_size, size)
        self.last_bias = nn.Sequential(nn.Linear(state_size, size), nn.ReLU(), nn.Linear(size, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """Returns Q [B] of values q [B, A] in states s [B, S]."""
        weights = self.first_weights(state).abs().view(-1, self._agents, self._size)
        hidden = elu(torch.einsum("ba,bas->bs", values, weights) + self.first_bias(state))
        value: Tensor = (self.last_weights(state).abs() * hidden).sum(1) + self.last_bias(state).squeeze(1)
        return value


class QMIX(VDN):
    """Learns action values of a team, which a network mixes monotonically; see VDN for the loss, with

        Q(s, a) = Mixer(Q_1(o_1, a_1), ..., Q_A(o_A, a_A); s)

    The state s consists of the observations of all agents, with zeros for absent ones.
    """

    settings_type = QMIXHyperparameters

    def modules(self) -> Mapping[str, nn.Module]:
        """Returns the mixing network.

        Raises:
            InvalidArgument: The policy has a torso.
        """
        if self.network.torso != NO_TORSO:
            raise InvalidArgument(
                f"algorithm {self.hyperparameters.algorithm!r} needs observations that are vectors, because its mixing "
                f"network receives those of all agents side by side; torso is {self.network.torso!r}",
                reason=UNSUITABLE_SPACE,
            )
        state_size = self._agents * self.observation_size
        return {"mixer": Mixer(self._agents, state_size, self.hyperparameters.mixing_size)}

    def mix(self, values: Tensor, state: Tensor, *, target: bool = False) -> Tensor:
        """See VDN.mix."""
        value: Tensor = (self.target("mixer") if target else self.module("mixer"))(values, state)
        return value
