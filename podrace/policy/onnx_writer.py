"""Writes ONNX files: the few messages and fields of ONNX that policies need.

ONNX files are protobuf messages (onnx.proto, https://github.com/onnx/onnx, IR version 8). They are written here field
by field, so that a policy can be loaded from a mesh with numpy and ONNX Runtime alone. A test reads the files with the
package onnx and its checker.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

IR_VERSION, OPSET_VERSION = 8, 17
FLOAT, INT64 = 1, 7
TYPES = {
    np.dtype(np.float32): FLOAT,
    np.dtype(np.uint8): 2,
    np.dtype(np.int32): 6,
    np.dtype(np.int64): INT64,
    np.dtype(np.bool_): 9,
    np.dtype(np.float16): 10,
    np.dtype(np.float64): 11,
}
"""TensorProto.DataType by numpy type."""
_FLOAT_ATTRIBUTE, _INT_ATTRIBUTE, _INTS_ATTRIBUTE = 1, 2, 7
_VARINT, _BYTES, _FIXED32 = 0, 2, 5

Attribute = int | float | Sequence[int]


class GraphWriter:
    """Collects the nodes and constants of a graph, and writes the file.

    writer = GraphWriter()
    outputs = writer.node("Gemm", "observation", writer.constant("weight", weight), transB=1)
    data = writer.model([Value("observation", np.float32, ("batch", 4))], [Value(...)], {"key": "value"})
    """

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._count = 0

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """Adds a constant under a new name, which it returns."""
        name = self._fresh(name)
        dimensions = b"".join(_integer(1, length) for length in array.shape)
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        self._constants.append(dimensions + _integer(2, TYPES[array.dtype]) + _text(8, name) + _field(9, data))
        return name

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Attribute) -> str:
        """Adds an operation with one output, and returns the name of the output."""
        return self.nodes(kind, *inputs, outputs=[output or self._fresh(kind)], **attributes)[0]

    def nodes(self, kind: str, *inputs: str, outputs: Sequence[str], **attributes: Attribute) -> Sequence[str]:
        """Adds an operation with several outputs, and returns their names."""
        self._nodes.append(
            b"".join(_text(1, name) for name in inputs)
            + b"".join(_text(2, name) for name in outputs)
            + _text(3, self._fresh(kind))
            + _text(4, kind)
            + b"".join(_field(5, _attribute(name, value)) for name, value in attributes.items())
        )
        return outputs

    def fresh(self, name: str, count: int) -> list[str]:
        """Returns names that nothing has yet."""
        return [self._fresh(name) for _ in range(count)]

    def _fresh(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"

    def model(self, inputs: Iterable["Value"], outputs: Iterable["Value"], metadata: Mapping[str, str]) -> bytes:
        """Returns the file."""
        graph = (
            b"".join(_field(1, node) for node in self._nodes)
            + _text(2, "policy")
            + b"".join(_field(5, constant) for constant in self._constants)
            + b"".join(_field(11, value.encoded()) for value in inputs)
            + b"".join(_field(12, value.encoded()) for value in outputs)
        )
        entries = (_text(1, key) + _text(2, value) for key, value in metadata.items())
        return (
            _integer(1, IR_VERSION)
            + _text(2, "podrace")
            + _field(7, graph)
            + _field(8, _text(1, "") + _integer(2, OPSET_VERSION))
            + b"".join(_field(14, entry) for entry in entries)
        )


class Value:
    """An input or an output of a graph."""

    def __init__(self, name: str, kind: np.dtype[np.generic], shape: Sequence[int | str]) -> None:
        """Describes it.

        Args:
            name: Of the value.
            kind: Type of an element.
            shape: Length of each dimension; a text for one that differs from call to call.
        """
        self.name, self.kind, self.shape = name, kind, shape

    def encoded(self) -> bytes:
        """Returns the message."""
        dimensions = (_text(2, one) if isinstance(one, str) else _integer(1, one) for one in self.shape)
        tensor = _integer(1, TYPES[self.kind]) + _field(2, b"".join(_field(1, one) for one in dimensions))
        return _text(1, self.name) + _field(2, _field(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _integer(3, value) + _integer(20, _INT_ATTRIBUTE)
    if isinstance(value, float):
        return _text(1, name) + _key(2, _FIXED32) + struct.pack("<f", value) + _integer(20, _FLOAT_ATTRIBUTE)
    return _text(1, name) + b"".join(_integer(8, one) for one in value) + _integer(20, _INTS_ATTRIBUTE)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _integer(field: int, number: int) -> bytes:
    return _key(field, _VARINT) + _varint(number)


def _field(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())
