"""Reads the header of a safetensors file: names, types, shapes and positions of its tensors, and no numbers. Pure.

Works without numpy. A file may come from another machine, so nothing is computed from a header before it is checked:
the work is bounded by the length of the header, and so are the integers.
"""

import json
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeGuard

HEADER_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, an unsigned little-endian integer of 64 bits."""
LARGEST_HEADER_BYTES = 2**20
MOST_DIMENSIONS = 16
LONGEST_DIMENSION = 2**40
LARGEST_POSITION = 2**63 - 1
METADATA_KEY = "__metadata__"
ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
"""Bytes of one element of each known type."""
_SHOWN_CHARACTERS = 64


class TensorEntry(NamedTuple):
    """What a header lists about a tensor."""

    element_type: str
    """A key of ELEMENT_BYTES."""
    shape: list[int]
    begin: int
    """Position in the file of its first byte."""
    end: int
    """Position in the file after its last byte."""


def read_header(data: bytes, element_types: Sequence[str] = tuple(ELEMENT_BYTES)) -> dict[str, TensorEntry]:
    """Returns the tensors that a file lists, by name.

    Args:
        data: The file.
        element_types: Keys of ELEMENT_BYTES that its tensors may have.

    Raises:
        ValueError: The file is no complete safetensors file, has a tensor of another type, or has bytes that belong to
            no tensor. The message is a short predicate, such as "has a header that is not JSON".
    """
    length = int.from_bytes(data[:HEADER_LENGTH_BYTES], "little")
    begin = HEADER_LENGTH_BYTES + length
    if len(data) < HEADER_LENGTH_BYTES or length > LARGEST_HEADER_BYTES or begin > len(data):
        raise ValueError("is not a safetensors file")
    try:
        header = json.loads(data[HEADER_LENGTH_BYTES:begin])
    except (ValueError, RecursionError):
        raise ValueError("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("has a header that is not a table of tensors")
    entries = {
        name: _entry(f"a tensor {name[:_SHOWN_CHARACTERS]!r}", entry, begin, element_types)
        for name, entry in header.items()
        if name != METADATA_KEY
    }
    ordered = sorted((entry.begin, entry.end) for entry in entries.values())
    ends = [begin, *(end for _, end in ordered)]
    if [first for first, _ in ordered] != ends[:-1] or ends[-1] != len(data):
        raise ValueError("has gaps between its tensors, or bytes that belong to none")
    return entries


def _entry(what: str, entry: object, begin: int, element_types: Sequence[str]) -> TensorEntry:
    """Returns the entry of a tensor; positions in a header count from the end of the header, `begin`."""
    found = entry if isinstance(entry, dict) else {}
    element_type, shape, positions = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
    if element_type not in element_types:
        raise ValueError(f"has {what} that is not {' or '.join(element_types)}")
    if not _are_counts(shape, LONGEST_DIMENSION) or not _are_counts(positions, LARGEST_POSITION) or len(positions) != 2:
        raise ValueError(f"has {what} whose shape or position is missing or out of range")
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"has {what} of {len(shape)} dimensions; at most {MOST_DIMENSIONS} are read")
    if positions[1] - positions[0] != prod(shape) * ELEMENT_BYTES[str(element_type)]:
        raise ValueError(f"has {what} of another size than its shape {str(shape)[:_SHOWN_CHARACTERS]}")
    return TensorEntry(str(element_type), shape, begin + positions[0], begin + positions[1])


def _are_counts(values: object, largest: int) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= largest for value in values)
