"""Owns double Q-learning (van Hasselt, Guez and Silver 2016, arXiv 1509.06461)."""

from dataclasses import dataclass

from agentpod.algorithms.dqn import DQN, DQNHyperparameters


@dataclass(frozen=True)
class DoubleDQNHyperparameters(DQNHyperparameters):
    """As of DQN."""

    algorithm = "double-dqn"


class DoubleDQN(DQN):
    """DQN whose next action is chosen by the network and valued by the target, so that noise is not taken for gain.

    y = R + discount Q_target(s', argmax Q(s', .))
    """

    settings_type = DoubleDQNHyperparameters
    double = True
