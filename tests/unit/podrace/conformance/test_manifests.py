"""A manifest that cannot be read is a finding about the pod that wrote it."""

import hashlib

import pytest

from podrace.conformance.examine import judge_of
from podrace.conformance.fakes.manifests import judge_submission, policy_digest
from podrace.conformance.findings import Violated
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\x00\xff",
        b'{"parts":[{"digest":"x"}]}',
        b'{"parts":null}',
        b'{"parts":["policy"]}',
    ],
)
def test_a_manifest_without_a_readable_policy_has_no_digest(data: bytes) -> None:
    assert policy_digest(lambda digest: data, "d") == ""


def test_the_digest_is_that_of_the_part_named_policy() -> None:
    data = b'{"parts":[{"name":"optimizer","digest":"x"},{"name":"policy","digest":"y"}]}'
    assert policy_digest(lambda digest: data, "d") == "y"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"no JSON", b'{"parts": 1}'])
def test_a_submitted_manifest_that_cannot_be_read_violates_a_requirement(data: bytes) -> None:
    with pytest.raises(Violated, match="a manifest cannot be read"):
        judge_submission(judge_of("pod"), lambda digest: data, Assignment(), hashlib.sha256(data).hexdigest())
