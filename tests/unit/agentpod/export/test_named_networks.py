"""A checkpoint decides no import: an export runs a network only if the specification of the tournament names it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import json_format
from policies import CASES, published

from agentpod.export.__main__ import export
from agentpod.models.description import describe, described_network
from agentpod.models.description import test_vectors as vectors_of
from agentpod.models.policy import NetworkSpec, Policy
from podrace.checkpoint_store.manifest import manifest_bytes
from podrace.client.delivery import FetchedCheckpoint
from podrace.errors import InvalidArgument
from podrace.specification import resolve as specification
from podrace.tensor_transport.codec import encode
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PLANTED = "python:planted_network:Net"
RESIDUAL = "python:user_networks:Residual"


def spec_with(network_class: str) -> TournamentSpec:
    values: dict[str, Any] = {
        "environment": {"id": "CartPole-v1"},
        "objective": {"environment_steps": 1_000_000},
        "algorithms": {"ppo": {"hyperparameters": {"network_class": network_class}}},
    }
    return specification.resolve(specification.parse(values, source="test"))


def request_in(folder: Path, checkpoint: FetchedCheckpoint, spec: TournamentSpec) -> Path:
    """Writes the folder that `podrace export` makes for one checkpoint."""
    own = folder / checkpoint.manifest_digest
    own.mkdir()
    (own / "manifest.json").write_bytes(manifest_bytes(checkpoint.manifest))
    for name, data in checkpoint.parts.items():
        (own / name).write_bytes(data)
    request = {
        "members": [checkpoint.manifest_digest],
        "formats": ["onnx"],
        "agent": "",
        "spec": json_format.MessageToDict(spec),
    }
    (folder / "request.json").write_text(json.dumps(request))
    return folder


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a module where imports find it, and returns the file that it writes when it runs."""
    ran = tmp_path / "ran"
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "planted_network.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(folder)
    return ran


@pytest.mark.parametrize("named", ["", RESIDUAL])
def test_a_checkpoint_with_a_network_that_the_specification_does_not_name_is_not_exported(
    tmp_path: Path, planted: Path, named: str
) -> None:
    checkpoint = published("logits").checkpoint
    checkpoint.manifest.policies["agent"].network_class = PLANTED
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.raises(InvalidArgument, match=f"network_class = '{PLANTED}': the specification of its tournament does"):
        export(request_in(folder, checkpoint, spec_with(named)))
    assert "planted_network" not in sys.modules
    assert not planted.exists()


def test_a_network_that_the_specification_names_is_exported(tmp_path: Path) -> None:
    checkpoint = published("logits").checkpoint
    policy = Policy(*CASES["logits"][:2], NetworkSpec((8,), network_class=RESIDUAL))
    policy.initialize(torch.Generator().manual_seed(1))
    checkpoint.manifest.policies["agent"].CopyFrom(describe(policy))
    parts = {"policy": encode(policy.tensors(), {}), "test_vectors": encode(vectors_of(policy), {})}
    made = FetchedCheckpoint(checkpoint.manifest_digest, b"", checkpoint.manifest, parts)
    with torch.no_grad():
        found = export(request_in(tmp_path, made, spec_with(RESIDUAL)))
    assert list(found["files"]) == ["policy.onnx"]


def test_the_structure_of_a_network_is_described_without_an_import(planted: Path) -> None:
    policies = published("logits").checkpoint.manifest.policies
    policies["agent"].network_class = PLANTED
    assert described_network(policies).network_class == PLANTED
    assert not planted.exists()
