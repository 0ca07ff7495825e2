"""Determines what an algorithm requires before its simulator exists: enough to open the roles of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentpod.algorithms import algorithm_class
from agentpod.algorithms.base import parse_hyperparameters
from agentpod.experience.memory_spec import MemorySpec
from agentpod.models.policy import NetworkSpec
from podrace.plugins.user_calls import calls_user_code


@dataclass(frozen=True)
class Requirements:
    """Policy structure and memory that an algorithm requires."""

    network: NetworkSpec
    """Structure of the policy."""
    memory: MemorySpec
    """Memory of experience that the learner allocates."""


def requirements(algorithm: str, hyperparameters: Mapping[str, object]) -> Requirements:
    """Returns the requirements of an algorithm with the given hyperparameters.

    Blocks while a user-defined class is imported.

    Raises:
        InvalidArgument: The algorithm or a hyperparameter is unknown, a value is out of range, or user-defined settings
            raised (UNUSABLE_ALGORITHM).
    """
    settings_type = algorithm_class(algorithm).settings_type
    with calls_user_code(settings_type, "__post_init__"):
        settings = parse_hyperparameters(settings_type, hyperparameters)
        return Requirements(settings.network, settings.memory)
