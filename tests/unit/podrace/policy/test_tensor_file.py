"""Tensor files are read as they were written, and a hostile one is refused with a short error."""

from dataclasses import replace

import numpy as np
import pytest
from hostile_headers import HUGE
from policies import CASES, published

from leaderboard.checkpoints.policy_shape import check_test_vectors
from podrace.errors import DataLoss
from podrace.policy.loading import checked_onnx_file
from podrace.policy.tensor_file import TYPES, read_tensors, written_tensors
from podrace.policy.tensor_header import ELEMENT_BYTES


def test_tensor_files_are_read_as_they_were_written() -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c": np.array([3])}
    read = read_tensors(written_tensors(tensors))
    assert list(read) == list(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


@pytest.mark.parametrize("data", HUGE, ids=range(len(HUGE)))
@pytest.mark.parametrize("part", ["policy", "test_vectors"])
def test_a_checkpoint_with_a_hostile_header_is_damaged(part: str, data: bytes) -> None:
    checkpoint = published("logits").checkpoint
    with pytest.raises(DataLoss) as refused:
        checked_onnx_file([replace(checkpoint, parts={**checkpoint.parts, part: data})])
    assert len(refused.value.message) < 500


def test_an_empty_tensor_whose_strides_do_not_fit_is_refused() -> None:
    shape = "[0, 1099511627776, 1099511627776, 1099511627776]"
    header = f'{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}'.encode()
    with pytest.raises(DataLoss):
        read_tensors(len(header).to_bytes(8, "little") + header)


def test_the_sizes_of_elements_are_those_of_numpy() -> None:
    assert {name: np.dtype(kind).itemsize for name, kind in TYPES.items()} == ELEMENT_BYTES


@pytest.mark.parametrize("case", CASES)
def test_the_leaderboard_accepts_the_test_vectors_of_every_kind_of_policy(case: str) -> None:
    assert check_test_vectors(published(case).checkpoint.parts["test_vectors"])
