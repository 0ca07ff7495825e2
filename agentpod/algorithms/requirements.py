"""What is known of an agent's algorithm before its simulator is: enough to open the roles of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentpod.algorithms import ALGORITHMS
from agentpod.algorithms.base import parse_hyperparameters
from agentpod.experience.memory_spec import MemorySpec
from agentpod.models.policy import NetworkSpec
from podrace.config import unknown
from podrace.errors import InvalidArgument


@dataclass(frozen=True)
class Requirements:
    """An agent's policy and memory in numbers."""

    network: NetworkSpec
    """Of the policy."""
    memory: MemorySpec
    """What the learner keeps for the algorithm."""


def requirements(algorithm: str, hyperparameters: Mapping[str, object]) -> Requirements:
    """Reads an outline from hyperparameters.

    Raises:
        InvalidArgument: The algorithm or a hyperparameter is unknown, or a value is out of range.
    """
    if algorithm not in ALGORITHMS:
        raise InvalidArgument(unknown("agent", "algorithm", algorithm, ALGORITHMS))
    settings = parse_hyperparameters(ALGORITHMS[algorithm].settings_type, hyperparameters)
    return Requirements(settings.network, settings.memory)
