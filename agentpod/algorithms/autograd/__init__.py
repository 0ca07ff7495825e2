"""Base classes of user's algorithms: a subclass states a loss, and everything else follows from it."""

from agentpod.algorithms.autograd.replay import ReplayAlgorithm
from agentpod.algorithms.autograd.rollout import Batch, RolloutAlgorithm
from agentpod.algorithms.autograd.settings import ReplaySettings, RolloutSettings
from agentpod.algorithms.base import linear_schedule
from agentpod.experience.transitions import TransitionBatch
from agentpod.returns import generalized_advantages
from podrace.specification.declaration import hyperparameter

__all__ = [
    "Batch",
    "ReplayAlgorithm",
    "ReplaySettings",
    "RolloutAlgorithm",
    "RolloutSettings",
    "TransitionBatch",
    "generalized_advantages",
    "hyperparameter",
    "linear_schedule",
]
