"""The header of a tensor file is read in bounded time, whatever it states, and its errors are short."""

import math
from collections.abc import Iterable

import pytest
from hostile_headers import HUGE, tensor_file

from podrace.policy import tensor_header
from podrace.policy.tensor_header import (
    LONGEST_DIMENSION,
    MOST_DIMENSIONS,
    TensorEntry,
    read_header,
)


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
