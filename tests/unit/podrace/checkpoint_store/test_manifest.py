"""Tests the canonical JSON of manifests and pointers."""

import json
import subprocess
import sys

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest, Part, Pointer, Trace
from podrace.checkpoint_store.manifest import canonical_json, manifest_bytes, manifest_from_bytes, pointer_from_bytes
from podrace.errors import DataLoss, Unimplemented


def full_manifest() -> Manifest:
    manifest = Manifest(
        format_version=1,
        agent_id="agent-1",
        algorithm="ppo",
        parts=[Part(name="policy", digest="0" * 64, size_bytes=2**53 + 1)],
        environment_steps=2**64 - 1,
        seed=12345678901234567890,
        evaluation=Evaluation(
            mean_return=0.1 + 0.2,
            variance=5e-324,
            metrics={"sharpe_ratio": 1 / 3, "annual_return": -1.7976931348623157e308},
            traces={"account_value": Trace(values=[1.0, 1e6 / 7], labels=["2022-02-14", "größer"])},
        ),
        training_seconds=1e22,
        publish_time=Timestamp(seconds=1_700_000_000, nanos=123),
    )
    manifest.hyperparameters.update({"learning_rate": 3e-4, "epochs": 4, "clip_value_loss": True, "activation": "tanh"})
    return manifest


def test_a_manifest_survives_a_round_trip_bit_by_bit() -> None:
    assert manifest_from_bytes(manifest_bytes(full_manifest())) == full_manifest()


def test_reading_and_writing_again_gives_the_same_bytes() -> None:
    data = manifest_bytes(full_manifest())
    assert manifest_bytes(manifest_from_bytes(data)) == data


def test_keys_are_sorted_and_there_are_no_spaces() -> None:
    text = manifest_bytes(full_manifest()).decode()
    fields = json.loads(text)
    assert list(fields) == sorted(fields)
    assert json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text
    assert fields["environment_steps"] == str(2**64 - 1)


def test_the_order_in_which_maps_were_filled_does_not_matter() -> None:
    names = [f"metric_{index}" for index in range(20)]
    one, other = Manifest(), Manifest()
    for name in names:
        one.evaluation.metrics[name] = 1.5
        one.hyperparameters[name] = 2.5
    for name in reversed(names):
        other.evaluation.metrics[name] = 1.5
        other.hyperparameters[name] = 2.5
    assert manifest_bytes(one) == manifest_bytes(other)


def test_fields_of_a_later_version_are_ignored() -> None:
    data = b'{"format_version":1,"algorithm":"ppo","from_the_future":{"x":1}}'
    assert manifest_from_bytes(data) == Manifest(format_version=1, algorithm="ppo")


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_version_is_refused(version: int) -> None:
    with pytest.raises(Unimplemented, match=f"format version {version}"):
        manifest_from_bytes(canonical_json(Manifest(format_version=version)))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"null", b"\xff", b'{"format_version":"x"}', bytes(100)])
def test_malformed_bytes_are_data_loss(data: bytes) -> None:
    with pytest.raises(DataLoss, match="not a Manifest in JSON"):
        manifest_from_bytes(data)
    if b"format_version" not in data:
        with pytest.raises(DataLoss, match="not a Pointer in JSON"):
            pointer_from_bytes(data)


def test_a_pointer_survives_a_round_trip() -> None:
    pointer = Pointer(agent_id="a", lease_epoch=7, manifest_digest="f" * 64)
    assert canonical_json(pointer) == b'{"agent_id":"a","lease_epoch":"7","manifest_digest":"%s"}' % (b"f" * 64)
    assert pointer_from_bytes(canonical_json(pointer)) == pointer


def test_the_package_imports_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import podrace.checkpoint_store, podrace.checkpoint_store.collect"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


CANONICAL = {
    0.0: "0.0",
    -2.5: "-2.5",
    1.0: "1.0",
    0.1: "0.1",
    0.0001: "0.0001",
    0.00001: "1e-05",
    123456789012345.0: "123456789012345.0",
    1e15: "1000000000000000.0",
    1e16: "1e+16",
    1.5e16: "1.5e+16",
    5e-324: "5e-324",
    1e22: "1e+22",
    float("nan"): '"NaN"',
    float("inf"): '"Infinity"',
    float("-inf"): '"-Infinity"',
}


@pytest.mark.parametrize(("number", "text"), CANONICAL.items())
def test_numbers_have_the_one_form_that_the_contract_states(number: float, text: str) -> None:
    manifest = Manifest(evaluation=Evaluation(metrics={"m": number}))
    assert canonical_json(manifest).decode() == f'{{"evaluation":{{"metrics":{{"m":{text}}}}}}}'


def test_texts_and_times_have_the_one_form_that_the_contract_states() -> None:
    manifest = Manifest(agent_id='a"\\\n\x01ü\x7f', publish_time=Timestamp(seconds=1, nanos=500_000_000), seed=2**63)
    assert canonical_json(manifest) == (
        b'{"agent_id":"a\\"\\\\\\n\\u0001\xc3\xbc\x7f","publish_time":"1970-01-01T00:00:01.500Z",'
        b'"seed":"9223372036854775808"}'
    )
