"""Translates between messages and what the room computes with: spaces, networks, environments."""

from collections.abc import Mapping

import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from torch import Tensor

from agentpod.models.action_heads import DEFAULT_HEAD
from agentpod.models.cnn import NO_TORSO
from agentpod.models.policy import NetworkSpec
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.tensor_transport.codec import spec_of
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Simulator, make
from simulators.messages import options_of


def network_spec(message: pb.PolicySpec) -> NetworkSpec:
    """The network a message describes."""
    return NetworkSpec(
        hidden_sizes=tuple(message.hidden_sizes),
        activation=message.activation,
        normalize_observations=message.normalize_observations,
        head=message.head or DEFAULT_HEAD,
        torso=message.torso or NO_TORSO,
        recurrent_size=message.recurrent_size,
    )


def policy_message(network: NetworkSpec, tensors: Mapping[str, Tensor] | None = None) -> pb.PolicySpec:
    """A network as it travels, with the table of its tensors once they are known."""
    return pb.PolicySpec(
        hidden_sizes=network.hidden_sizes,
        activation=network.activation,
        normalize_observations=network.normalize_observations,
        head=network.head,
        torso=network.torso,
        recurrent_size=network.recurrent_size,
        tensors=[spec_of(name, tensor) for name, tensor in (tensors or {}).items()],
    )


def make_simulator(environment: EnvironmentSpec, device: torch.device) -> Simulator:
    """Makes what an EnvironmentSpec names; raises as simulators.make does."""
    return make(environment.id, environment.count, options_of(environment.options), str(device))


def with_options(environment: EnvironmentSpec, options: Struct, count: int) -> EnvironmentSpec:
    """The same environment with some options laid over its own, and another number of lanes."""
    changed = EnvironmentSpec()
    changed.CopyFrom(environment)
    changed.options.update(json_format.MessageToDict(options))
    changed.count = count
    return changed
