"""The header of a tensor file is read in bounded time, whatever it states, and its errors are short."""

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest

from podrace.policy import tensor_header
from podrace.policy.tensor_header import (
    LARGEST_HEADER_BYTES,
    LONGEST_DIMENSION,
    MOST_DIMENSIONS,
    TensorEntry,
    read_header,
)


def tensor_file(entries: Any, data: bytes = bytes(4)) -> bytes:
    described = json.dumps(entries).encode()
    return len(described).to_bytes(8, "little") + described + data


def with_shape(shape: list[int], positions: tuple[int, int] = (0, 4), element_type: str = "F32") -> bytes:
    return tensor_file({"a": {"dtype": element_type, "shape": shape, "data_offsets": positions}})


def test_names_types_shapes_and_positions_are_read() -> None:
    entries = {
        "__metadata__": {"any": "text"},
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [], "data_offsets": [8, 9]},
        "c": {"dtype": "I64", "shape": [0, 7], "data_offsets": [9, 9]},
    }
    data = tensor_file(entries, bytes(9))
    begin = len(data) - 9
    assert read_header(data) == {
        "a": TensorEntry("F32", [2, 1], begin, begin + 8),
        "b": TensorEntry("U8", [], begin + 8, begin + 9),
        "c": TensorEntry("I64", [0, 7], begin + 9, begin + 9),
    }
    with pytest.raises(ValueError, match="has a tensor 'b' that is not F32"):
        read_header(data, ["F32"])


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


@pytest.mark.parametrize("data", HUGE, ids=range(len(HUGE)))
def test_no_large_product_is_computed_and_no_long_text_is_quoted(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def bounded_product(lengths: Iterable[int]) -> int:
        factors = list(lengths)
        assert len(factors) <= MOST_DIMENSIONS
        assert all(factor <= LONGEST_DIMENSION for factor in factors)
        return math.prod(factors)

    monkeypatch.setattr(tensor_header, "prod", bounded_product)
    with pytest.raises(ValueError, match=r"^(has|is) ") as refused:
        read_header(data)
    assert len(str(refused.value)) < 200
