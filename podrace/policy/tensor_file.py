"""Reads and writes safetensors files as numpy arrays, with numpy alone."""

import json
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.errors import DataLoss
from podrace.policy.tensor_header import HEADER_LENGTH_BYTES, TensorEntry, read_header

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
        DataLoss: The bytes are not a complete safetensors file, or have tensors of a type that numpy does not have, or
            of a size that `read_header` refuses.
    """
    try:
        return {name: _tensor(data, entry) for name, entry in read_header(data).items()}
    except ValueError as error:
        raise DataLoss(f"a tensor file of {len(data)} bytes {error}") from None


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


def _tensor(data: bytes, entry: TensorEntry) -> NDArray[Any]:
    kind = np.dtype(TYPES[entry.element_type])
    array = np.frombuffer(data, kind.newbyteorder("<"), prod(entry.shape), entry.begin)
    return array.reshape(entry.shape).astype(kind)
