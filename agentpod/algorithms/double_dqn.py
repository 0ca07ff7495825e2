"""Implements double DQN (van Hasselt, Guez and Silver 2016, arXiv 1509.06461)."""

from dataclasses import dataclass

from agentpod.algorithms.dqn import DQN, DQNHyperparameters


@dataclass(frozen=True)
class DoubleDQNHyperparameters(DQNHyperparameters):
    """Hyperparameters of double DQN: those of DQN."""

    algorithm = "double-dqn"


class DoubleDQN(DQN):
    """Selects the next action by the network and evaluates it by the target network, which reduces overestimation.

    y = R + discount Q_target(s', argmax Q(s', .))
    """

    settings_type = DoubleDQNHyperparameters
    double = True
