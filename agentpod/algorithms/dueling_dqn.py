"""Implements dueling DQN (Wang et al. 2016, arXiv 1511.06581)."""

from dataclasses import dataclass, replace

from agentpod.algorithms.dqn import DQN, DQNHyperparameters
from agentpod.models.policy import NetworkSpec


@dataclass(frozen=True)
class DuelingDQNHyperparameters(DQNHyperparameters):
    """Hyperparameters of dueling DQN: those of DQN."""

    algorithm = "dueling-dqn"

    @property
    def network(self) -> NetworkSpec:
        """Structure of the policy, with a dueling head."""
        return replace(super().network, head="dueling")


class DuelingDQN(DQN):
    """DQN whose network outputs V(s) and an advantage for each choice: Q = V + A - mean A."""

    settings_type = DuelingDQNHyperparameters
    dueling = True
