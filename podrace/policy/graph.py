"""Builds the ONNX graph of a policy, or of an ensemble: from an observation to an action of the environment.

    data = build([Member(description, tensors), ...], metadata)

Inputs are `observation` [batch, ...] and, for recurrent policies, `state` [batch, S]: zeros at the beginning of an
episode. Outputs are `action` (of the environment, without exploration), `next_state` where there is a state, and, for a
single policy, `outputs` of its network. Normalization and scaling of actions are within the graph. The states of the
members of an ensemble are side by side. The steps are those of podrace.agentpod.v1.PolicySpec.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podrace.checkpoint.v1.policy_pb2 import PolicyDescription
from podrace.errors import DataLoss, InvalidArgument
from podrace.policy.entry_graph import choices, columns_of, encoded, masked, most_choices, scaled
from podrace.policy.onnx_writer import FLOAT, GraphWriter, Value
from podrace.tensor.v1 import tensor_pb2

STEPS_VERSION = 1
VARIANCE_FLOOR, OBSERVATION_CLIP = 1e-8, 10.0
STRIDES: Mapping[str, tuple[int, ...]] = {"none": (), "nature": (4, 2, 1), "small": (2, 1)}
"""Strides of the convolutions of each torso."""
ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}
ELEMENT_TYPES: Mapping[Any, np.dtype[Any]] = {
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype(np.float64),
    tensor_pb2.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    tensor_pb2.DATA_TYPE_INT32: np.dtype(np.int32),
    tensor_pb2.DATA_TYPE_INT64: np.dtype(np.int64),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype(np.uint8),
    tensor_pb2.DATA_TYPE_BOOL: np.dtype(np.bool_),
}
HEADS = {
    "discrete": ("stochastic", "squashed", "deterministic", "values", "dueling"),
    "continuous": ("stochastic", "squashed", "deterministic"),
    "multi_discrete": ("stochastic",),
    "multi_binary": ("stochastic",),
}


Nodes = Callable[[GraphWriter, str], str]
"""Adds a network to a graph: (writer, name of its input [batch, D]) -> name of its outputs [batch, outputs]."""


@dataclass(frozen=True)
class Member:
    """A policy with its parameters."""

    description: PolicyDescription
    tensors: Mapping[str, NDArray[Any]]
    """The part `policy` of its checkpoint."""
    network: Nodes | None = None
    """The network of a user (`network_class`); None: the layers of the description."""


class _Acted(NamedTuple):
    """Names of the results of one member."""

    outputs: str
    action: str
    next_state: str


def build(members: Sequence[Member], metadata: Mapping[str, str]) -> bytes:
    """Returns an ONNX file; several members act together: by the mean of their actions, or by majority vote.

    Raises:
        InvalidArgument: A description is not one that this build knows, or the members act in different spaces.
        DataLoss: A tensor is missing.
    """
    for member in members:
        _check(member, members[0].description)
    writer, description = GraphWriter(), members[0].description
    states = _states(writer, members)
    try:
        acted = [_member(writer, member, state) for member, state in zip(members, states, strict=True)]
    except KeyError as error:
        raise DataLoss(f"the policy has no tensor {error.args[0]!r}, which its description requires") from None
    kind = ELEMENT_TYPES[description.observation_space.data_type]
    inputs = [Value("observation", kind, ("batch", *description.observation_space.shape))]
    outputs = [_together(writer, acted, description)]
    if len(acted) == 1:
        writer.node("Identity", acted[0].outputs, output="outputs")
        outputs.append(Value("outputs", np.dtype(np.float32), ("batch", "outputs")))
    if size := sum(member.description.recurrent_size for member in members):
        inputs.append(Value("state", np.dtype(np.float32), ("batch", size)))
        outputs.append(Value("next_state", np.dtype(np.float32), ("batch", size)))
        writer.node("Concat", *(one.next_state for one in acted if one.next_state), output="next_state", axis=1)
    return writer.model(inputs, outputs, metadata)


def _check(member: Member, first: PolicyDescription) -> None:
    description = member.description
    observed, acted = description.observation_space, description.action_space
    if description.steps_version != STEPS_VERSION:
        raise InvalidArgument(f"version {description.steps_version} of the steps: this build knows {STEPS_VERSION}")
    if (observed, acted) != (first.observation_space, first.action_space):
        raise InvalidArgument("the members of an ensemble have different observations or actions")
    if description.network_class and not member.network:
        raise InvalidArgument(
            f"the network of this policy is the class {description.network_class!r}, which is not imported here;"
            " `podrace export` writes it as an ONNX file where the class is installed, and load_policy reads that file"
        )
    known = (
        observed.kind in ("continuous", "composite") and observed.data_type in ELEMENT_TYPES,
        description.head in HEADS.get(acted.kind, ()),
        description.torso in STRIDES,
        description.activation in ACTIVATIONS,
        description.normalization in ("none", "bytes", "statistics"),
    )
    if not all(known):
        raise InvalidArgument(
            f"a policy with head {description.head!r}, torso {description.torso!r}, activation"
            f" {description.activation!r}, normalization {description.normalization!r}, {observed.kind} observations"
            f" and {acted.kind} actions: this build cannot act with it; update podrace"
        )


def _states(writer: GraphWriter, members: Sequence[Member]) -> list[str]:
    """Returns the name of the state of each member; empty for those without one."""
    sizes = [member.description.recurrent_size for member in members if member.description.recurrent_size]
    if len(sizes) < 2:
        names = ["state"] * len(sizes)
    else:
        split = writer.constant("sizes", np.array(sizes, np.int64))
        names = list(writer.nodes("Split", "state", split, outputs=writer.fresh("state", len(sizes)), axis=1))
    return [names.pop(0) if member.description.recurrent_size else "" for member in members]


def _member(writer: GraphWriter, member: Member, state: str) -> _Acted:
    description, tensors = member.description, member.tensors
    activation, next_state, layer = ACTIVATIONS[description.activation], "", 0
    x = _input(writer, member)
    if member.network:
        x = masked(writer, description, member.network(writer, x))
        return _Acted(x, _action(writer, description, x), "")
    while layer == 0 or f"actor.{layer}.weight" in tensors:
        x = _linear(writer, tensors, f"actor.{layer}", x)
        layer += 1
        if state or f"actor.{layer}.weight" in tensors:
            x = writer.node(activation, x)
    if state:
        next_state = x = _recurrent(writer, tensors, x, state)
        x = _linear(writer, tensors, "actor.output.0", x)
    x = masked(writer, description, x)
    return _Acted(x, _action(writer, description, x), next_state)


def _input(writer: GraphWriter, member: Member) -> str:
    description, tensors = member.description, member.tensors
    x = writer.node("Cast", "observation", to=FLOAT)
    if description.observation_space.kind == "composite":
        return _composite(writer, member, x)
    if description.normalization == "bytes":
        x = writer.node("Mul", x, writer.constant("pixel_scale", np.float32(1.0 / 255.0).reshape(1)))
    if description.torso != "none":
        return _torso(writer, description, tensors, x, "actor", description.observation_space.shape)
    x = writer.node("Flatten", x, axis=1)
    if description.normalization != "statistics":
        return x
    return _normalized(writer, tensors, x, slice(None))


def _composite(writer: GraphWriter, member: Member, row: str) -> str:
    description, tensors = member.description, member.tensors
    activation = ACTIVATIONS[description.activation]

    def normalize(x: str, place: slice) -> str:
        return _normalized(writer, tensors, x, place)

    def encode(name: str, x: str, image: tuple[int, ...]) -> str:
        if image:
            x = writer.node("Reshape", x, writer.constant("image", np.array([-1, *image], np.int64)))
            x = _torso(writer, description, tensors, x, name, image)
        return writer.node(activation, _linear(writer, tensors, f"{name}.0", x))

    scaling = normalize if description.normalization == "statistics" else None
    if member.network:
        return scaled(writer, description, row, scaling)
    return encoded(writer, description, row, scaling, encode)


def _normalized(writer: GraphWriter, tensors: Mapping[str, NDArray[Any]], x: str, place: slice) -> str:
    inverse = 1.0 / np.sqrt(tensors["observation_variance"][place] + np.float32(VARIANCE_FLOOR))
    x = writer.node("Sub", x, writer.constant("observation_mean", tensors["observation_mean"][place]))
    x = writer.node("Mul", x, writer.constant("inverse_deviation", inverse.astype(np.float32)))
    low, high = (
        writer.constant("clip", np.array(bound, np.float32)) for bound in (-OBSERVATION_CLIP, OBSERVATION_CLIP)
    )
    return writer.node("Clip", x, low, high)


def _torso(
    writer: GraphWriter,
    description: PolicyDescription,
    tensors: Mapping[str, NDArray[Any]],
    x: str,
    name: str,
    shape: Sequence[int],
) -> str:
    if not shape[0] < min(shape[1:]):
        x = writer.node("Transpose", x, perm=[0, 3, 1, 2])
    for layer, stride in enumerate(STRIDES[description.torso]):
        weight, bias = (tensors[f"{name}.torso.{layer}.{part}"] for part in ("weight", "bias"))
        weight_name, bias_name = writer.constant("kernel", weight), writer.constant("bias", bias)
        x = writer.node("Conv", x, weight_name, bias_name, strides=[stride, stride])
        x = writer.node(ACTIVATIONS[description.activation], x)
    return writer.node("Flatten", x, axis=1)


def _linear(writer: GraphWriter, tensors: Mapping[str, NDArray[Any]], name: str, x: str) -> str:
    return _gemm(writer, tensors, f"{name}.weight", f"{name}.bias", x)


def _gemm(writer: GraphWriter, tensors: Mapping[str, NDArray[Any]], weight: str, bias: str, x: str) -> str:
    return writer.node(
        "Gemm", x, writer.constant(weight, tensors[weight]), writer.constant(bias, tensors[bias]), transB=1
    )


def _recurrent(writer: GraphWriter, tensors: Mapping[str, NDArray[Any]], x: str, state: str) -> str:
    """Adds the gated recurrent unit; the operator GRU of ONNX orders its gates in another way."""
    name = "actor.recurrent"
    size = tensors[f"{name}.state_weight"].shape[1]
    split = writer.constant("gates", np.array([size] * 3, np.int64))

    def gates(which: str, operand: str) -> Sequence[str]:
        sums = _gemm(writer, tensors, f"{name}.{which}_weight", f"{name}.{which}_bias", operand)
        return writer.nodes("Split", sums, split, outputs=writer.fresh("gate", 3), axis=1)

    (r_x, z_x, n_x), (r_h, z_h, n_h) = gates("input", x), gates("state", state)
    r = writer.node("Sigmoid", writer.node("Add", r_x, r_h))
    z = writer.node("Sigmoid", writer.node("Add", z_x, z_h))
    n = writer.node("Tanh", writer.node("Add", n_x, writer.node("Mul", r, n_h)))
    # (1 - z) n + z h
    return writer.node("Add", n, writer.node("Mul", z, writer.node("Sub", state, n)))


def _action(writer: GraphWriter, description: PolicyDescription, outputs: str) -> str:
    """Adds the head, and the scaling of continuous actions."""
    space, head = description.action_space, description.head
    if space.kind == "discrete":
        values = columns_of(writer, outputs, 1, int(space.choices) + 1) if head == "dueling" else outputs
        return writer.node("ArgMax", values, axis=1, keepdims=0)
    if space.kind != "continuous":
        return choices(writer, space, outputs)
    if head == "squashed":
        outputs = columns_of(writer, outputs, 0, prod(space.shape))
    action = outputs if head == "stochastic" else writer.node("Tanh", outputs)
    scaling = description.action_scaling

    def number(name: str, values: Sequence[float]) -> str:
        return writer.constant(name, np.array(values, np.float32))

    action = writer.node("Max", action, number("minimum", scaling.minimum))
    action = writer.node("Min", action, number("maximum", scaling.maximum))
    action = writer.node("Mul", action, number("scale", scaling.scale))
    action = writer.node("Add", action, number("offset", scaling.offset))
    return writer.node("Reshape", action, writer.constant("shape", np.array([-1, *space.shape], np.int64)))


def _together(writer: GraphWriter, acted: Sequence[_Acted], description: PolicyDescription) -> Value:
    """Adds what the members decide together, and returns the output `action`."""
    space, actions = description.action_space, [one.action for one in acted]
    if space.kind == "continuous":
        writer.node("Mean", *actions, output="action")
        return Value("action", np.dtype(np.float32), ("batch", *space.shape))
    if len(actions) == 1:
        writer.node("Identity", *actions, output="action")
    else:
        depth = writer.constant("choices", np.array(most_choices(space), np.int64))
        coding = writer.constant("coding", np.array([0.0, 1.0], np.float32))
        votes = writer.node("Sum", *(writer.node("OneHot", one, depth, coding, axis=-1) for one in actions))
        # A tie goes to the lowest number.
        writer.node("ArgMax", votes, output="action", axis=-1, keepdims=0)
    return Value("action", np.dtype(np.int64), ("batch", *space.shape))
