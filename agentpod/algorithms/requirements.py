"""Determines what an algorithm requires before its simulator exists: enough to open the roles of a pod."""

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
    """Policy structure and memory that an algorithm requires."""

    network: NetworkSpec
    """Structure of the policy."""
    memory: MemorySpec
    """Memory of experience that the learner allocates."""


def requirements(algorithm: str, hyperparameters: Mapping[str, object]) -> Requirements:
    """Returns the requirements of an algorithm with the given hyperparameters.

    Raises:
        InvalidArgument: The algorithm or a hyperparameter is unknown, or a value is out of range.
    """
    if algorithm not in ALGORITHMS:
        raise InvalidArgument(unknown("agent", "algorithm", algorithm, ALGORITHMS))
    settings = parse_hyperparameters(ALGORITHMS[algorithm].settings_type, hyperparameters)
    return Requirements(settings.network, settings.memory)
