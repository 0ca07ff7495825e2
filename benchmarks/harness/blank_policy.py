"""Makes policy files of the shape that a leaderboard expects of an agent, filled with zeros."""

from functools import cache

import torch
from google.protobuf import json_format

from agentpod.algorithms.requirements import requirements
from agentpod.models.policy import NetworkSpec, policy_shapes
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification.environment_search import algorithm_values
from podrace.tensor_transport.codec import encode
from simulators.base import Space

OBSERVATIONS = Space("continuous", (4,), torch.float32)
ACTIONS = Space("discrete", (), torch.int64, n=2)


def blank_policy(agent: Agent) -> bytes:
    """Returns a policy for four observations and two actions, with the layers of the agent's hyperparameters."""
    values = algorithm_values(json_format.MessageToDict(agent.hyperparameters))
    return _encoded(requirements(agent.algorithm, values).network)


@cache
def _encoded(network: NetworkSpec) -> bytes:
    shapes = policy_shapes(OBSERVATIONS, ACTIONS, network)
    return encode({name: torch.zeros(shape) for name, shape in shapes.items()}, {})
