"""Converts network specifications to and from their protobuf messages."""

from collections.abc import Mapping

from torch import Tensor

from agentpod.models.action_heads import DEFAULT_HEAD
from agentpod.models.cnn import NO_TORSO
from agentpod.models.policy import NetworkSpec
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.tensor_transport.codec import spec_of


def network_spec(message: pb.PolicySpec) -> NetworkSpec:
    """Reads a network specification from a message; an empty head or torso means its default."""
    return NetworkSpec(
        hidden_sizes=tuple(message.hidden_sizes),
        activation=message.activation,
        normalize_observations=message.normalize_observations,
        head=message.head or DEFAULT_HEAD,
        torso=message.torso or NO_TORSO,
        recurrent_size=message.recurrent_size,
        network_class=message.network_class,
        network_options=tuple(sorted(message.network_options.items())),
        share_parameters=not message.separate_parameters,
    )


def policy_message(network: NetworkSpec, tensors: Mapping[str, Tensor] | None = None) -> pb.PolicySpec:
    """Writes a network specification as a message, with names, shapes and dtypes of `tensors` where they are given."""
    return pb.PolicySpec(
        hidden_sizes=network.hidden_sizes,
        activation=network.activation,
        normalize_observations=network.normalize_observations,
        head=network.head,
        torso=network.torso,
        recurrent_size=network.recurrent_size,
        network_class=network.network_class,
        network_options=dict(network.network_options),
        separate_parameters=not network.share_parameters,
        tensors=[spec_of(name, tensor) for name, tensor in (tensors or {}).items()],
    )
