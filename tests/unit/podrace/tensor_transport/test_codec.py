"""Tests the encoding of tensors: equal bytes for equal tensors, and the checks of specifications."""

import hashlib
import json
import random
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load, save

from podrace.errors import DataLoss, InvalidArgument
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor_transport.codec import decode, digest, encode, spec_of

METADATA = {"algorithm": "ppo", "policy_version": "17", "note": "größer", "z": "", "a": "1", "k": "v"}


def policy() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        "actor.0.weight": torch.randn(5, 3, generator=generator),
        "actor.0.bias": torch.randn(5, generator=generator).double(),
        "normalizer.count": torch.tensor(12, dtype=torch.int64),
        "mask": torch.tensor([True, False]),
        "half": torch.randn(3, generator=generator).bfloat16(),
        "empty": torch.zeros(0, 4),
    }


def test_tensors_and_metadata_survive_a_round_trip_bit_by_bit() -> None:
    tensors, metadata = decode(encode(policy(), METADATA))
    assert metadata == METADATA
    assert set(tensors) == set(policy())
    for name, tensor in policy().items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_non_finite_numbers_and_signed_zeros_keep_their_bits() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    tensors, _ = decode(encode({"odd": odd}, {}))
    assert torch.equal(tensors["odd"].view(torch.int32), odd.view(torch.int32))


def test_equal_tensors_give_equal_bytes_in_any_order_of_insertion() -> None:
    expected = encode(policy(), METADATA)
    for seed in range(10):
        names, keys = list(policy()), list(METADATA)
        random.Random(seed).shuffle(names)
        random.Random(seed).shuffle(keys)
        assert encode({name: policy()[name] for name in names}, {key: METADATA[key] for key in keys}) == expected


@pytest.mark.long
def test_equal_tensors_give_equal_digests_in_another_process() -> None:
    program = (
        "import json, sys, torch; from podrace.tensor_transport.codec import digest, encode\n"
        "tensors = {str(i): torch.full((i,), float(i)) for i in range(20)}\n"
        "print(digest(encode(tensors, json.loads(sys.argv[1]))))"
    )
    tensors = {str(i): torch.full((i,), float(i)) for i in reversed(range(20))}
    answer = subprocess.run(
        [sys.executable, "-c", program, json.dumps(METADATA)], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == digest(encode(tensors, METADATA))


def test_strides_and_gradients_do_not_change_the_bytes() -> None:
    plain = torch.arange(12.0).view(3, 4)
    transposed = plain.t().contiguous().t().requires_grad_()
    assert not transposed.is_contiguous()
    assert encode({"x": transposed}, {}) == encode({"x": plain}, {})


def test_one_changed_bit_changes_the_digest() -> None:
    changed = policy()
    changed["actor.0.weight"].view(torch.int32)[0, 0] ^= 1
    assert digest(encode(changed, METADATA)) != digest(encode(policy(), METADATA))


def test_the_digest_is_the_sha256_of_the_bytes() -> None:
    assert digest(b"podrace") == hashlib.sha256(b"podrace").hexdigest()


def test_files_are_compatible_with_the_safetensors_library() -> None:
    assert torch.equal(load(encode(policy(), METADATA))["actor.0.weight"], policy()["actor.0.weight"])
    tensors, metadata = decode(save(policy(), metadata=METADATA))
    assert torch.equal(tensors["actor.0.weight"], policy()["actor.0.weight"])
    assert metadata == METADATA


def test_decoded_tensors_can_be_written() -> None:
    tensors, _ = decode(encode(policy(), {}))
    tensors["actor.0.bias"].add_(1)
    assert torch.equal(tensors["actor.0.bias"], policy()["actor.0.bias"] + 1)


@pytest.mark.parametrize("kept_bytes", [0, 7, 8, 40, -1])
def test_a_truncated_file_is_refused(kept_bytes: int) -> None:
    with pytest.raises(DataLoss, match="not a complete safetensors file"):
        decode(encode(policy(), METADATA)[:kept_bytes])


def test_a_file_with_trailing_bytes_is_refused() -> None:
    with pytest.raises(DataLoss, match="not a complete safetensors file"):
        decode(encode(policy(), METADATA) + b"more")


def test_an_unsupported_element_type_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"'counts': torch\.int16 cannot be transferred"):
        encode({"counts": torch.zeros(2, dtype=torch.int16)}, {})
    with pytest.raises(InvalidArgument, match=r"'counts': torch\.int16 cannot be transferred"):
        decode(save({"counts": torch.zeros(2, dtype=torch.int16)}))


def test_a_rank_above_eight_is_refused_by_name() -> None:
    assert list(spec_of("deep", torch.zeros([1] * 8)).shape) == [1] * 8
    with pytest.raises(InvalidArgument, match="'deep': rank 9"):
        spec_of("deep", torch.zeros([1] * 9))


def test_a_tensor_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no name"):
        spec_of("", torch.zeros(1))


def test_a_specification_has_name_type_shape_and_layout() -> None:
    spec = spec_of("reward", torch.zeros(4, 3, dtype=torch.float64))
    assert (spec.name, spec.data_type, list(spec.shape), spec.layout_version) == (
        "reward",
        tensor_pb2.DATA_TYPE_FLOAT64,
        [4, 3],
        1,
    )
