"""Owns the dueling architecture (Wang et al. 2016, arXiv 1511.06581)."""

from dataclasses import dataclass, replace

from agentpod.algorithms.dqn import DQN, DQNHyperparameters
from agentpod.models.policy import NetworkSpec


@dataclass(frozen=True)
class DuelingDQNHyperparameters(DQNHyperparameters):
    """As of DQN."""

    algorithm = "dueling-dqn"

    @property
    def network(self) -> NetworkSpec:
        """Of the policy, with a value beside the advantages."""
        return replace(super().network, head="dueling")


class DuelingDQN(DQN):
    """DQN whose network gives V(s) and an advantage for each choice: Q = V + A - mean A."""

    settings_type = DuelingDQNHyperparameters
    dueling = True
