"""Implements dueling double DQN ("D3QN"), the combination of double DQN and dueling DQN."""

from dataclasses import dataclass

from agentpod.algorithms.dueling_dqn import DuelingDQN, DuelingDQNHyperparameters


@dataclass(frozen=True)
class D3QNHyperparameters(DuelingDQNHyperparameters):
    """Hyperparameters of D3QN: those of dueling DQN."""

    algorithm = "d3qn"


class D3QN(DuelingDQN):
    """Dueling networks with double-DQN targets.

    With n_step and prioritized it is most of Rainbow (Hessel et al. 2018, arXiv 1710.02298).
    """

    settings_type = D3QNHyperparameters
    double = True
