"""Refused submissions are counted and recorded, whatever a checkpoint contains."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from policy_files import manifest_of, policy_file, safetensors

from leaderboard.checkpoints import submission_check
from leaderboard.checkpoints.manifest_check import Problem
from leaderboard.store.refusal_records import LONGEST_MESSAGE, refusals_after
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint.v1.policy_pb2 import PolicyDescription
from podrace.checkpoint_store.publish import claim, publish
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Refusal, SubmitCandidateRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PROGRAM = """
import prometheus_client
import leaderboard.checkpoints.submission_check
print(prometheus_client.generate_latest().decode())
"""


def test_every_reason_to_refuse_a_submission_has_a_sample_before_the_first_refusal() -> None:
    """Prometheus sees no increase in a counter whose first sample is 1."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for reason in ("bad_checkpoint", "bad_digest", "non_finite"):
        assert f'podrace_leaderboard_submissions_refused_total{{reason="{reason}"}} 0.0\n' in done.stdout


def _huge() -> bytes:
    """Returns a tensor file whose header states a huge shape."""
    entry = {"dtype": "F32", "shape": [2**61] * 49_000, "data_offsets": [0, 4]}
    header = json.dumps({"a": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


HUGE = _huge()
NO_POLICIES: Mapping[str, PolicyDescription] = {}


def submission_of(
    mesh: Any, agent: Agent, parts: dict[str, bytes], policies: Mapping[str, PolicyDescription] = NO_POLICIES
) -> SubmitCandidateRequest:
    """Publishes a checkpoint with these parts, and returns the request that submits it."""
    claim(mesh.store, agent.agent_id, 1)
    manifest = manifest_of(agent, parts["policy"], 5.0)
    for key, description in policies.items():
        manifest.policies[key].CopyFrom(description)
    name = publish(mesh.store, agent.agent_id, 1, parts, manifest)
    checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
    return SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=1)


async def refusal_of(
    mesh: Any, agent: Agent, parts: dict[str, bytes], policies: Mapping[str, PolicyDescription] = NO_POLICIES
) -> Refusal:
    """Submits a checkpoint with these parts, which is refused, and returns what is recorded."""
    with pytest.raises(InvalidArgument):
        await mesh.updater.submit(submission_of(mesh, agent, parts, policies))
    (recorded,) = await mesh.state.transact(refusals_after, agent.tournament_id, 0)
    assert isinstance(recorded, Refusal)
    return recorded


async def test_the_refusal_of_a_policy_with_a_huge_shape_is_short(
    mesh: Any, make_spec: Callable[..., TournamentSpec]
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    recorded = await refusal_of(mesh, agent, {"policy": HUGE})
    assert "has a tensor 'a' whose shape or position is missing or out of range" in recorded.message
    assert len(recorded.message) < LONGEST_MESSAGE


async def test_a_recorded_message_is_cut(
    mesh: Any, make_spec: Callable[..., TournamentSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_check, "first_problem", lambda *_: Problem("seed", "long " * 1000))
    agent = await mesh.generate(make_spec(), 0)
    recorded = await refusal_of(mesh, agent, {"policy": policy_file(agent)})
    assert recorded.message.startswith("manifest ")
    assert len(recorded.message) == LONGEST_MESSAGE


VECTORS = {"observation": [8, 4], "outputs": [8, 2], "action": [8]}


@pytest.mark.parametrize(
    ("vectors", "line"),
    [
        (b"nothing", "is not a safetensors file"),
        (HUGE, "has a tensor 'a' whose shape or position is missing or out of range"),
        (safetensors({"observation": [8, 4], "action": [8]}), "has no tensor 'outputs'"),
        (safetensors(VECTORS | {"action": [7]}), "has tensors of different numbers of rows"),
        (safetensors(VECTORS | {"action": []}), "has tensors of different numbers of rows"),
    ],
)
async def test_malformed_test_vectors_are_refused(
    mesh: Any, make_spec: Callable[..., TournamentSpec], vectors: bytes, line: str
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    recorded = await refusal_of(mesh, agent, {"policy": policy_file(agent), "test_vectors": vectors})
    assert f"parts['test_vectors']: {line}" in recorded.message


async def test_a_checkpoint_with_test_vectors_is_accepted(mesh: Any, make_spec: Callable[..., TournamentSpec]) -> None:
    agent = await mesh.generate(make_spec(), 0)
    parts = {"policy": policy_file(agent), "test_vectors": safetensors(VECTORS)}
    await mesh.updater.submit(submission_of(mesh, agent, parts))
    assert len(await mesh.board()) == 1


async def test_a_manifest_that_names_another_network_than_the_specification_is_refused(
    mesh: Any, make_spec: Callable[..., TournamentSpec]
) -> None:
    agent = await mesh.generate(make_spec(), 0)
    parts = {"policy": policy_file(agent)}
    policies = {
        "agent": PolicyDescription(part="policy"),
        "other": PolicyDescription(part="policy", network_class="python:planted:Net"),
    }
    recorded = await refusal_of(mesh, agent, parts, policies)
    assert (
        "policies['other'].network_class = 'python:planted:Net': the specification does not name this network"
        in recorded.message
    )


async def test_a_manifest_may_name_a_network_of_the_specification(
    mesh: Any, make_spec: Callable[..., TournamentSpec]
) -> None:
    own = {"ppo": {"hyperparameters": {"network_class": "python:mine:Net"}}}
    agent = await mesh.generate(make_spec(algorithms=own), 0)
    parts = {"policy": safetensors({"actor.first.weight": [2, 4]})}
    policies = {"agent": PolicyDescription(part="policy", network_class="python:mine:Net")}
    await mesh.updater.submit(submission_of(mesh, agent, parts, policies))
    assert len(await mesh.board()) == 1
