"""Writes the network of a user as nodes of an ONNX graph, by tracing its operations.

    onnx = network_nodes(policy)                # (writer, name of the input [N, D]) -> name of the outputs
    build([Member(description, tensors, onnx)], metadata)

The operations in OPERATIONS are supported, which are those of perceptrons, convolutions and distributions of returns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export.graph_signature import InputKind

from agentpod.models.policy import Policy
from agentpod.models.user_network import KEY
from podrace.errors import Unimplemented
from podrace.policy.graph import Nodes
from podrace.policy.onnx_writer import GraphWriter

ROWS = 3
UNARY = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "elu": "Elu", "exp": "Exp", "neg": "Neg", "abs": "Abs"}
BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
SHAPED = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view")


def network_nodes(policy: Policy) -> Nodes | None:
    """Returns what adds the network of a policy to a graph; None if it is not a network of the user."""
    if not policy.network.network_class:
        return None
    factory = policy.network.network_factory(policy.observation_space, policy.action_space)
    module = factory.user_network().bound(policy.tensors(), None)
    example = torch.zeros(ROWS, *policy.observation_space.shape)
    traced = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},))

    def add(writer: GraphWriter, inputs: str) -> str:
        shape = np.array([-1, *policy.observation_space.shape], np.int64)
        return _Converter(writer, traced).run(writer.node("Reshape", inputs, writer.constant("shape", shape)))

    return add


class _Converter:
    """Adds the operations of a traced module to a graph, one after another."""

    def __init__(self, writer: GraphWriter, traced: torch.export.ExportedProgram) -> None:
        self._writer, self._traced = writer, traced
        self._names: dict[str, str] = {}

    def run(self, inputs: str) -> str:
        """Adds all operations, and returns the name of the result."""
        kept: Mapping[str, Tensor] = {**self._traced.state_dict, **self._traced.constants}
        for one in self._traced.graph_signature.input_specs:
            name = getattr(one.arg, "name", "")
            if one.kind == InputKind.USER_INPUT:
                self._names[name] = inputs
            else:
                array = kept[str(one.target)].detach().cpu().numpy()
                self._names[name] = self._writer.constant("kept", array)
        for node in self._traced.graph.nodes:
            if node.op == "call_function":
                self._names[node.name] = self._operation(node, str(node.target).split(".")[1])
        result: Any = next(node for node in self._traced.graph.nodes if node.op == "output").args[0]
        return self._names[result[0].name]

    def _operation(self, node: Any, kind: str) -> str:
        write, arguments = self._writer.node, node.args
        if kind in ("dropout", "contiguous", "clone", "alias"):
            return self._value(arguments[0])
        if kind in SHAPED:
            return write("Reshape", self._value(arguments[0]), self._shape_of(node))
        if kind in UNARY:
            return write(UNARY[kind], self._value(arguments[0]))
        if kind in BINARY and not node.kwargs:
            return write(BINARY[kind], *map(self._value, arguments[:2]))
        if kind in OPERATIONS:
            return OPERATIONS[kind](self, *arguments)
        raise Unimplemented(
            f"{KEY}: its operation {kind!r} cannot be written as ONNX here; export it with --format torch"
        )

    def _shape_of(self, node: Any) -> str:
        shape = [length if isinstance(length, int) else -1 for length in node.meta["val"].shape]
        return self._writer.constant("shape", np.array(shape, np.int64))

    def _value(self, argument: Any) -> str:
        if isinstance(argument, int | float):
            return self._writer.constant("number", np.array(argument, np.float32))
        return self._names[argument.name]

    def linear(self, inputs: Any, weight: Any, bias: Any = None) -> str:
        transposed = self._writer.node("Transpose", self._value(weight), perm=[1, 0])
        product = self._writer.node("MatMul", self._value(inputs), transposed)
        return self._writer.node("Add", product, self._value(bias)) if bias is not None else product

    def convolution(
        self,
        inputs: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        *_: Any,
    ) -> str:
        own = [self._value(one) for one in (inputs, weight, bias) if one is not None]
        return self._writer.node("Conv", *own, strides=list(stride), pads=[*padding, *padding])

    def layer_norm(
        self, inputs: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, epsilon: float = 1e-5, *_: Any
    ) -> str:
        write, x, axes = self._writer.node, self._value(inputs), list(range(-len(shape), 0))
        centred = write("Sub", x, write("ReduceMean", x, axes=axes, keepdims=1))
        variance = write("ReduceMean", write("Mul", centred, centred), axes=axes, keepdims=1)
        x = write("Div", centred, write("Sqrt", write("Add", variance, self._value(float(epsilon)))))
        x = write("Mul", x, self._value(weight)) if weight is not None else x
        return write("Add", x, self._value(bias)) if bias is not None else x

    def gelu(self, inputs: Any) -> str:
        write, x = self._writer.node, self._value(inputs)
        share = write("Add", write("Erf", write("Mul", x, self._value(0.5**0.5))), self._value(1.0))
        return write("Mul", write("Mul", x, share), self._value(0.5))

    def softmax(self, inputs: Any, axis: int, *_: Any) -> str:
        return self._writer.node("Softmax", self._value(inputs), axis=axis)

    def total(self, inputs: Any, axes: Sequence[int], keep: bool = False) -> str:
        places = self._writer.constant("axes", np.array(axes, np.int64))
        return self._writer.node("ReduceSum", self._value(inputs), places, keepdims=int(keep))

    def mean(self, inputs: Any, axes: Sequence[int], keep: bool = False) -> str:
        return self._writer.node("ReduceMean", self._value(inputs), axes=list(axes), keepdims=int(keep))

    def silu(self, inputs: Any) -> str:
        x = self._value(inputs)
        return self._writer.node("Mul", x, self._writer.node("Sigmoid", x))

    def cat(self, inputs: Sequence[Any], axis: int = 0) -> str:
        return self._writer.node("Concat", *map(self._value, inputs), axis=axis)


OPERATIONS: Mapping[str, Callable[..., str]] = {
    "linear": _Converter.linear,
    "conv2d": _Converter.convolution,
    "layer_norm": _Converter.layer_norm,
    "gelu": _Converter.gelu,
    "silu": _Converter.silu,
    "softmax": _Converter.softmax,
    "sum": _Converter.total,
    "mean": _Converter.mean,
    "cat": _Converter.cat,
}
"""Operations of torch besides UNARY, BINARY and SHAPED, by name."""
