"""Owns dueling double DQN, "D3QN": both successors of DQN in one."""

from dataclasses import dataclass

from agentpod.algorithms.dueling_dqn import DuelingDQN, DuelingDQNHyperparameters


@dataclass(frozen=True)
class D3QNHyperparameters(DuelingDQNHyperparameters):
    """As of dueling DQN."""

    algorithm = "d3qn"


class D3QN(DuelingDQN):
    """Dueling network, doubled targets; with n_step and prioritized it is most of Rainbow (Hessel et al. 2018)."""

    settings_type = D3QNHyperparameters
    double = True
