"""Translates between messages and what the room computes with: spaces, networks, environments."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from torch import Tensor

from agentpod.heads import DEFAULT_HEAD
from agentpod.policy import NetworkSpec
from agentpod.torsos import NO_TORSO
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import InvalidArgument
from podrace.tensors.codec import DATA_TYPES, ELEMENT_TYPES, spec_of
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Simulator, Space, make

_KINDS: Mapping[str, pb.Space.Kind.ValueType] = {
    "continuous": pb.Space.KIND_CONTINUOUS,
    "discrete": pb.Space.KIND_DISCRETE,
}


def space_message(space: Space) -> pb.Space:
    """A space as it travels."""
    return pb.Space(
        kind=_KINDS[space.kind],
        shape=space.shape,
        data_type=DATA_TYPES[space.dtype],
        low=_bounds_message(space.low),
        high=_bounds_message(space.high),
        choices=space.n,
    )


def _bounds_message(bounds: tuple[float, ...] | None) -> tuple[float, ...]:
    """One number where all elements share it: those of a picture's elements would not fit a message."""
    return bounds[:1] if bounds and bounds.count(bounds[0]) == len(bounds) else bounds or ()


def _bounds_of(bounds: Sequence[float], elements: int) -> tuple[float, ...] | None:
    return tuple(bounds) * (elements if len(bounds) == 1 else 1) or None


def space_of(message: pb.Space) -> Space:
    """A space as it arrived.

    Raises:
        InvalidArgument: Its kind or element type is unknown.
    """
    if message.kind not in _KINDS.values() or message.data_type not in ELEMENT_TYPES:
        raise InvalidArgument(
            f"space of kind {message.kind} and data type {message.data_type}: not one this build knows"
        )
    elements = math.prod(message.shape)
    return Space(
        kind="continuous" if message.kind == pb.Space.KIND_CONTINUOUS else "discrete",
        shape=tuple(message.shape),
        dtype=ELEMENT_TYPES[message.data_type],
        low=_bounds_of(message.low, elements),
        high=_bounds_of(message.high, elements),
        n=message.choices,
    )


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
    return make(environment.id, environment.count, _plain(json_format.MessageToDict(environment.options)), str(device))


def with_options(environment: EnvironmentSpec, options: Struct, count: int) -> EnvironmentSpec:
    """The same environment with some options laid over its own, and another number of lanes."""
    changed = EnvironmentSpec()
    changed.CopyFrom(environment)
    changed.options.update(json_format.MessageToDict(options))
    changed.count = count
    return changed


def _plain(value: Any) -> Any:
    """Whole numbers as int: a Struct turned them into floats, and many factories insist."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
