"""What is known of an agent's algorithm before its simulator is: enough to open the roles of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentpod.algorithms.base import parse_hyperparameters
from agentpod.algorithms.ppo_hyperparameters import PPOHyperparameters
from agentpod.policy import NetworkSpec
from podrace.config import unknown
from podrace.errors import InvalidArgument

HYPERPARAMETERS: Mapping[str, type[PPOHyperparameters]] = {"ppo": PPOHyperparameters}
"""By algorithm."""


@dataclass(frozen=True)
class Outline:
    """An agent's policy and rollouts in numbers."""

    network: NetworkSpec
    """Of the policy."""
    horizon: int
    """Steps of each environment in a rollout."""


def outline(algorithm: str, hyperparameters: Mapping[str, object]) -> Outline:
    """Reads an outline from hyperparameters.

    Raises:
        InvalidArgument: The algorithm or a hyperparameter is unknown, or a value is out of range.
    """
    if algorithm not in HYPERPARAMETERS:
        raise InvalidArgument(unknown("agent", "algorithm", algorithm, HYPERPARAMETERS))
    settings = parse_hyperparameters(HYPERPARAMETERS[algorithm], hyperparameters)
    network = NetworkSpec(settings.hidden_sizes, settings.activation, settings.normalize_observations)
    return Outline(network, settings.horizon)
