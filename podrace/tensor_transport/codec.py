"""Describes tensors in messages and checks the descriptions; encodes tensors as safetensors for checkpoint files.

Equal tensors give equal bytes, in any process and any order of insertion, so that their digests can be compared.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from podrace.digests import digest
from podrace.errors import DataLoss, InvalidArgument
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorSpec

__all__ = ["decode", "digest", "element_type", "encode", "size_bytes", "spec_of"]

LAYOUT_VERSION = 1
MAXIMUM_RANK = 8
MAXIMUM_TENSOR_BYTES = 2**36
"""64 GiB: above any buffer of one device today, and small enough that a hostile shape cannot overflow an offset."""

ELEMENT_TYPES: dict[tensor_pb2.DataType.ValueType, torch.dtype] = {
    tensor_pb2.DATA_TYPE_FLOAT32: torch.float32,
    tensor_pb2.DATA_TYPE_FLOAT64: torch.float64,
    tensor_pb2.DATA_TYPE_INT32: torch.int32,
    tensor_pb2.DATA_TYPE_INT64: torch.int64,
    tensor_pb2.DATA_TYPE_UINT8: torch.uint8,
    tensor_pb2.DATA_TYPE_BOOL: torch.bool,
    tensor_pb2.DATA_TYPE_BFLOAT16: torch.bfloat16,
    tensor_pb2.DATA_TYPE_FLOAT16: torch.float16,
}
DATA_TYPES = {element: data_type for data_type, element in ELEMENT_TYPES.items()}

HEADER_LENGTH_BYTES = 8
METADATA_KEY = "__metadata__"


def element_type(spec: TensorSpec) -> torch.dtype:
    """Returns the torch type of one element.

    Raises:
        InvalidArgument: The type is unspecified or newer than this build.
    """
    element = ELEMENT_TYPES.get(spec.data_type)
    if element is None:
        known = ", ".join(tensor_pb2.DataType.Name(data_type) for data_type in ELEMENT_TYPES)
        raise InvalidArgument(f"tensor {spec.name!r}: data type {spec.data_type} is unknown; it must be one of {known}")
    return element


def size_bytes(spec: TensorSpec) -> int:
    """Returns the size of the elements in bytes, after checking the whole specification.

    Raises:
        InvalidArgument: Name, layout version, type, rank or size is not allowed; the message names the tensor.
    """
    if not spec.name:
        raise InvalidArgument("a tensor has no name")
    if spec.layout_version != LAYOUT_VERSION:
        raise InvalidArgument(
            f"tensor {spec.name!r}: layout version {spec.layout_version} is unknown, this build reads {LAYOUT_VERSION}"
        )
    if len(spec.shape) > MAXIMUM_RANK:
        raise InvalidArgument(f"tensor {spec.name!r}: rank {len(spec.shape)} is above {MAXIMUM_RANK}")
    # Strides are computed from the other dimensions even if one of them is 0.
    size = math.prod(max(1, length) for length in spec.shape) * element_type(spec).itemsize
    if size > MAXIMUM_TENSOR_BYTES:
        raise InvalidArgument(f"tensor {spec.name!r}: {size} bytes are above {MAXIMUM_TENSOR_BYTES}")
    return 0 if 0 in spec.shape else size


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    """Describes a tensor on any device and with any strides; its contiguous form is transferred.

    Raises:
        InvalidArgument: The tensor cannot be transferred; the message names it.
    """
    data_type = DATA_TYPES.get(tensor.dtype)
    if data_type is None:
        known = ", ".join(str(element).removeprefix("torch.") for element in DATA_TYPES)
        raise InvalidArgument(f"tensor {name!r}: {tensor.dtype} cannot be transferred; convert it to one of {known}")
    spec = TensorSpec(name=name, data_type=data_type, shape=tensor.shape, layout_version=LAYOUT_VERSION)
    size_bytes(spec)
    return spec


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Encodes tensors as a safetensors file; equal arguments give equal bytes.

    Args:
        tensors: Tensors by name, on any device and with any strides; no two may share memory.
        metadata: Text stored with them.

    Raises:
        InvalidArgument: A tensor cannot be transferred; the message names it.
    """
    for name, tensor in tensors.items():
        spec_of(name, tensor)
    plain = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    return _with_metadata(safetensors.torch.save(plain), metadata)


def decode(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors (on the CPU, copied) and the metadata of a safetensors file.

    Raises:
        DataLoss: The bytes are not a complete safetensors file.
        InvalidArgument: A tensor has a type that cannot be transferred; the message names it.
    """
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:  # KeyError: an element type unknown to the library
        raise DataLoss(f"{len(data)} bytes are not a complete safetensors file: {error}") from error
    for name, tensor in tensors.items():
        spec_of(name, tensor)
    header, _ = _split(data)
    return tensors, dict(header.get(METADATA_KEY, {}))


def _split(data: bytes) -> tuple[dict[str, Any], memoryview]:
    end = HEADER_LENGTH_BYTES + int.from_bytes(data[:HEADER_LENGTH_BYTES], "little")
    return json.loads(data[HEADER_LENGTH_BYTES:end]), memoryview(data)[end:]


def _with_metadata(data: bytes, metadata: Mapping[str, str]) -> bytes:
    # The library writes metadata in the random order of a Rust HashMap, so it is added to the header here, sorted.
    if not metadata:
        return data
    header, elements = _split(data)
    header = {METADATA_KEY: dict(sorted(metadata.items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    padded = text.ljust(math.ceil(len(text) / HEADER_LENGTH_BYTES) * HEADER_LENGTH_BYTES)
    return b"".join((len(padded).to_bytes(HEADER_LENGTH_BYTES, "little"), padded, elements))
