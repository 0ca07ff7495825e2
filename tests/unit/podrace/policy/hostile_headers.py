"""Makes tensor files whose headers state whatever a hostile pod likes."""

import json
from typing import Any

from podrace.policy.tensor_header import LARGEST_HEADER_BYTES, LONGEST_DIMENSION, MOST_DIMENSIONS


def tensor_file(entries: Any, data: bytes = bytes(4)) -> bytes:
    described = json.dumps(entries).encode()
    return len(described).to_bytes(8, "little") + described + data


def with_shape(shape: list[int], positions: tuple[int, int] = (0, 4), element_type: str = "F32") -> bytes:
    return tensor_file({"a": {"dtype": element_type, "shape": shape, "data_offsets": positions}})


HUGE = [
    with_shape([2**61] * 49_000),
    with_shape([LONGEST_DIMENSION] * 70_000),
    with_shape([1] * 300_000),
    with_shape([2] * (MOST_DIMENSIONS + 1)),
    with_shape([LONGEST_DIMENSION + 1]),
    with_shape([int("9" * 4300)] * 240),
    with_shape([LONGEST_DIMENSION] * MOST_DIMENSIONS),
    with_shape([1], (0, int("9" * 4300))),
    tensor_file({"n" * 10**6: {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
    tensor_file({"a": {"dtype": "F" * 10**6}}),
    tensor_file({"a": {"dtype": ["F32"] * 10**5}}),
    with_shape([1], element_type="BF16"),
    (LARGEST_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(2 * LARGEST_HEADER_BYTES),
]
