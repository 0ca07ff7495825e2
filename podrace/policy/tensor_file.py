"""Reads and writes safetensors files as numpy arrays, with numpy alone."""

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.errors import DataLoss

HEADER_LENGTH_BYTES = 8
TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Returns the tensors of a safetensors file by name.

    Raises:
        DataLoss: The bytes are not a complete safetensors file, or have tensors of a type that numpy does not have.
    """
    try:
        begin = HEADER_LENGTH_BYTES + int.from_bytes(data[:HEADER_LENGTH_BYTES], "little")
        header = json.loads(data[HEADER_LENGTH_BYTES:begin])
        named = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(data, begin, entry) for name, entry in named.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLoss(f"{len(data)} bytes are not a complete safetensors file: {error}") from None


def written_tensors(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Returns a safetensors file of some tensors, in their order."""
    names = {np.dtype(kind): name for name, kind in TYPES.items()}
    header, data = {}, b""
    for name, array in tensors.items():
        own = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        places = [len(data), len(data) + len(own)]
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": places}
        data += own
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(HEADER_LENGTH_BYTES, "little") + text + data


def _tensor(data: bytes, begin: int, entry: dict[str, Any]) -> NDArray[Any]:
    kind = np.dtype(TYPES[entry["dtype"]])
    shape, (first, last) = entry["shape"], entry["data_offsets"]
    if not 0 <= first <= last <= len(data) - begin or last - first != prod(shape) * kind.itemsize:
        raise ValueError(f"a tensor of shape {shape} at {first} to {last}")
    array = np.frombuffer(data, kind.newbyteorder("<"), prod(shape), begin + first)
    return array.reshape(shape).astype(kind)
