"""Translates between simulators and the messages of SimulatorService: spaces, options, and tensors cut into parts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from torch import Tensor

from podrace.agentpod.v1 import agentpod_pb2
from podrace.checkpoint.v1.policy_pb2 import SpaceEntry
from podrace.errors import InvalidArgument, PodraceError
from podrace.limits.config import Allowed
from podrace.spaces.entries import Entry, problem_of
from podrace.tensor.v1.tensor_pb2 import TensorSpec
from podrace.tensor_transport.codec import DATA_TYPES, ELEMENT_TYPES, LAYOUT_VERSION, MAXIMUM_RANK
from podrace.tensor_transport.probe import PROBE_SPEC
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Simulator, make
from simulators.base import Kind, Space

MESSAGE_BYTES = 2**20
"""Maximum bytes of tensor elements in one message."""
ROW_FIELDS = ("observation", "reward", "terminated", "truncated")
"""The fields with one row per lane in every step, in the order of the message."""
SHARED_PREFIX = "podrace-steps-"
"""Prefix of the names of the shared-memory files in which a service may be asked to step."""

MOST_AGENTS = 256
"""Most agents of one environment."""
MOST_ELEMENTS = 2**24
"""Most elements of an observation or an action: a space keeps bounds for each, even if a message has only one."""

_KIND_OF: Mapping[agentpod_pb2.Space.Kind.ValueType, Kind] = {
    agentpod_pb2.Space.KIND_CONTINUOUS: "continuous",
    agentpod_pb2.Space.KIND_DISCRETE: "discrete",
    agentpod_pb2.Space.KIND_MULTI_DISCRETE: "multi_discrete",
    agentpod_pb2.Space.KIND_MULTI_BINARY: "multi_binary",
    agentpod_pb2.Space.KIND_COMPOSITE: "composite",
}
KINDS: Mapping[str, agentpod_pb2.Space.Kind.ValueType] = {kind: value for value, kind in _KIND_OF.items()}
"""Values of the message by the kind of a Space."""


def space_message(space: Space) -> agentpod_pb2.Space:
    """Translates a space to its message."""
    return agentpod_pb2.Space(
        kind=KINDS[space.kind],
        shape=space.shape,
        data_type=DATA_TYPES[space.dtype],
        low=_bounds_message(space.low),
        high=_bounds_message(space.high),
        choices=space.n,
        element_choices=space.choices,
        entries=[entry_message(entry) for entry in space.entries],
        agents=space.agents,
    )


def _bounds_message(bounds: tuple[float, ...] | None) -> tuple[float, ...]:
    """Returns one number if all elements share it: one bound per pixel of a picture would not fit in a message."""
    return bounds[:1] if bounds and bounds.count(bounds[0]) == len(bounds) else bounds or ()


def space_of(message: agentpod_pb2.Space) -> Space:
    """Translates a message to a space.

    Raises:
        InvalidArgument: The kind or element type is unknown, there are too many dimensions, elements or choices, or the
            number of bounds, choices or entries does not match the elements.
    """
    if message.kind not in _KIND_OF or message.data_type not in ELEMENT_TYPES:
        raise InvalidArgument(
            f"space of kind {message.kind} and data type {message.data_type}: not known to this build"
        )
    elements = _elements_of(message.shape)
    entries = (
        entries_of_messages(message.entries, elements) if message.kind == agentpod_pb2.Space.KIND_COMPOSITE else ()
    )
    choices = tuple(message.element_choices)
    if message.kind == agentpod_pb2.Space.KIND_MULTI_DISCRETE and (
        len(choices) != elements or min(choices, default=0) < 1
    ):
        raise InvalidArgument(f"a space of {elements} elements has the choices {list(choices[:8])}")
    if (outputs := message.choices + sum(choices)) > MOST_ELEMENTS:
        raise InvalidArgument(f"a space has {outputs} choices, more than {MOST_ELEMENTS}")
    return Space(
        kind=_KIND_OF[message.kind],
        shape=tuple(message.shape),
        dtype=ELEMENT_TYPES[message.data_type],
        low=_bounds_of(message.low, elements),
        high=_bounds_of(message.high, elements),
        n=message.choices,
        choices=choices,
        entries=entries,
        agents=_agents_of(message.agents),
    )


def _elements_of(shape: Sequence[int]) -> int:
    if len(shape) > MAXIMUM_RANK:
        raise InvalidArgument(f"a space has {len(shape)} dimensions: expected at most {MAXIMUM_RANK}")
    elements = math.prod(shape)
    if elements > MOST_ELEMENTS:
        raise InvalidArgument(f"a space of the shape {list(shape)} has {elements} elements, more than {MOST_ELEMENTS}")
    return elements


def _agents_of(names: Sequence[str]) -> tuple[str, ...]:
    if len(names) > MOST_AGENTS or len(set(names)) != len(names):
        raise InvalidArgument(f"a space has {len(names)} agents: expected at most {MOST_AGENTS}, with different names")
    return tuple(names)


def entry_message(entry: Entry) -> SpaceEntry:
    """Translates an entry of a composite observation to its message."""
    return SpaceEntry(
        name=entry.name, encoding=entry.encoding, shape=entry.shape, choices=entry.choices, first=entry.first
    )


def entries_of_messages(messages: Sequence[SpaceEntry], elements: int) -> tuple[Entry, ...]:
    """Translates the entries of a composite observation of so many elements.

    Raises:
        InvalidArgument: An encoding is unknown, or the entries do not fit each other or the elements.
    """
    entries = tuple(
        Entry(one.name, one.encoding, tuple(one.shape), tuple(one.choices), tuple(one.first)) for one in messages
    )
    if problem := problem_of(entries, elements):
        raise InvalidArgument(f"a composite observation {problem}")
    return entries


def _bounds_of(bounds: Sequence[float], elements: int) -> tuple[float, ...] | None:
    if len(bounds) not in (0, 1, elements):
        raise InvalidArgument(f"a space of {elements} elements has {len(bounds)} bounds: expected {elements} or 1")
    return tuple(bounds) * (elements if len(bounds) == 1 else 1) or None


def options_of(message: Struct) -> dict[str, object]:
    """Translates a message to options.

    Whole numbers become int again: a Struct holds only floats, and many factories require int.
    """
    options: dict[str, object] = _plain(json_format.MessageToDict(message))
    return options


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def step_specs(observation_space: Space, action_space: Space, count: int) -> dict[str, TensorSpec]:
    """Returns the specs of the tensors of one step of `count` lanes, and of the probe, by name."""
    observed = (count, *observation_space.shape)
    shapes = {
        "action": ((count, *action_space.shape), action_space.dtype),
        "observation": (observed, observation_space.dtype),
        "reward": ((count,), torch.float32),
        "terminated": ((count,), torch.bool),
        "truncated": ((count,), torch.bool),
        "final_observation": (observed, observation_space.dtype),
    }
    specs = {
        name: TensorSpec(name=name, data_type=DATA_TYPES[dtype], shape=shape, layout_version=LAYOUT_VERSION)
        for name, (shape, dtype) in shapes.items()
    }
    return {**specs, PROBE_SPEC.name: PROBE_SPEC}


# --- tensors in parts ----------------------------------------------------------------------------------------------


def bytes_of(tensor: Tensor) -> bytes:
    """Returns the elements of a tensor [N, ...] on any device, in C order."""
    plain = tensor.cpu().contiguous()
    # numpy has no bfloat16; it knows every other element type that is sent.
    return (plain.view(torch.uint8) if plain.dtype is torch.bfloat16 else plain).numpy().tobytes()


def pieces(fields: Mapping[str, bytes], most_bytes: int = MESSAGE_BYTES) -> Iterator[dict[str, bytes]]:
    """Cuts fields into parts that fit in messages, in order; yields at least one part, even if all fields are empty."""
    if sum(map(len, fields.values())) <= most_bytes:
        yield dict(fields)
        return
    piece: dict[str, bytes] = {}
    room = most_bytes
    for name, data in fields.items():
        start = 0
        while start < len(data):
            piece[name] = data[start : start + room]
            start += len(piece[name])
            room -= len(piece[name])
            if not room:
                yield piece
                piece, room = {}, most_bytes
    if piece:
        yield piece


class Inbox:
    """Joins the parts of one field into a tensor."""

    def __init__(self, name: str, tensor: Tensor, error: type[PodraceError]) -> None:
        """Creates an empty inbox.

        Args:
            name: Name of the field, for error messages.
            tensor: Contiguous, on the CPU; written in place.
            error: Raised when the sizes do not match.
        """
        self._name, self._error = name, error
        self._elements = tensor.view(-1).view(torch.uint8).numpy()
        self._filled_bytes = 0

    def put(self, piece: bytes) -> None:
        """Appends a part; raises if it exceeds the size of the tensor."""
        end = self._filled_bytes + len(piece)
        if end > len(self._elements):
            raise self._error(f"{self._name} has at least {end} bytes, expected at most {len(self._elements)}")
        self._elements[self._filled_bytes : end] = np.frombuffer(piece, np.uint8)
        self._filled_bytes = end

    def finish(self, expected_bytes: int | None = None) -> None:
        """Completes the field, so that the next one can start; raises if its size is not as expected.

        Args:
            expected_bytes: Size of the field; None: that of the whole tensor.
        """
        expected = len(self._elements) if expected_bytes is None else expected_bytes
        if self._filled_bytes != expected:
            raise self._error(f"{self._name} has {self._filled_bytes} bytes, expected {expected}")
        self._filled_bytes = 0


def make_simulator(environment: EnvironmentSpec, device: torch.device, allowed: Allowed) -> Simulator:
    """Makes the simulator of an EnvironmentSpec, if it is `allowed`; raises the errors of simulators.make."""
    return make(environment.id, environment.count, options_of(environment.options), str(device), allowed=allowed)


def with_options(environment: EnvironmentSpec, options: Struct, count: int) -> EnvironmentSpec:
    """Returns a copy of an environment with `options` merged over its options, and another number of lanes."""
    changed = EnvironmentSpec()
    changed.CopyFrom(environment)
    changed.options.update(json_format.MessageToDict(options))
    changed.count = count
    return changed
