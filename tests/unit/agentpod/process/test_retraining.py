"""An agent is trained again from its manifest alone, by a pod like any other."""

from pathlib import Path

import pytest
from google.protobuf.struct_pb2 import Struct

from agentpod.config import RetrainConfig
from agentpod.learner.provenance import add_provenance, as_struct, spec_of, versions
from agentpod.process.retraining import assignment_of, copy_checkpoint, pod_config, run, settings_of
from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.pod_settings import pod_settings, roles_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.manifest import manifest_bytes, manifest_from_bytes
from podrace.checkpoint_store.publish import claim, fetch, publish
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification import resolve as specification
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PARENT = 64 * "c"


def make_spec(**sections: object) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {"hyperparameters": {"hidden_sizes": [16, 8]}}},
        "objective": {"environment_steps": 123_456_789_012},
        "seed": 2**53 + 1,
    }
    return specification.resolve(specification.parse(values | sections, source="test"))


def make_manifest(spec: TournamentSpec, **fields: object) -> Manifest:
    agent = Agent(starting_checkpoint=Checkpoint(agent_id="t-a1", manifest_digest=PARENT))
    values = {"tournament_id": "t", "agent_id": "t-a7", "algorithm": "ppo", "seed": 2**63 + 1, "format_version": 1}
    manifest = Manifest(**values | fields)
    manifest.hyperparameters.update({"learning_rate": 0.002})
    add_provenance(manifest, agent, as_struct(spec))
    return manifest


def test_a_manifest_preserves_the_specification() -> None:
    spec = make_spec()
    stored = manifest_from_bytes(manifest_bytes(make_manifest(spec)))
    assert spec_of(stored) == spec
    assert stored.starting_manifest_digest == PARENT
    assert {"python", "torch", "podrace", "machine"} <= set(stored.versions)
    assert dict(stored.versions) == versions()


def test_an_assignment_is_built_from_a_manifest_alone() -> None:
    spec = make_spec(evaluation={"episodes": 5})
    given = assignment_of(make_manifest(spec))
    agent = given.train
    assert (agent.agent_id, agent.number, agent.algorithm, agent.seed) == ("t-a7", 7, "ppo", 2**63 + 1)
    assert agent.hyperparameters["learning_rate"] == 0.002
    assert agent.starting_checkpoint.manifest_digest == PARENT
    spec.synchronous = True
    assert given.spec == spec


def test_a_manifest_without_a_specification_is_rejected() -> None:
    earlier = make_manifest(make_spec())
    earlier.ClearField("spec")
    for manifest in (earlier, make_manifest(make_spec(), snapshot=True)):
        with pytest.raises(FailedPrecondition, match="agent t-a7: this manifest does not record how it was trained"):
            assignment_of(manifest)


def test_a_training_with_the_steps_of_other_agents_cannot_be_repeated() -> None:
    spec = make_spec(algorithms={"sac": {}, "ppo": {}}, experience={"shared": True})
    alone = make_manifest(spec)
    assert assignment_of(alone).train.algorithm == "ppo", "PPO learns from its own steps only"
    alone.hyperparameters.update({"replay_capacity": 1_000})
    with pytest.raises(FailedPrecondition, match=r"agent t-a7: it also learned from steps of other agents"):
        assignment_of(alone)


def test_a_training_that_started_from_an_average_cannot_be_repeated() -> None:
    averaged = make_manifest(make_spec(), mate_manifest_digests=["ab" * 32])
    with pytest.raises(FailedPrecondition, match=r"agent t-a7: it started from the average of several agents"):
        assignment_of(averaged)


@pytest.mark.parametrize(
    "pod",
    [
        {"layout": "fused", "cores": 1},
        {"layout": "fused", "cores": 4, "learners": 2},
        {"layout": "separate", "cores": 6, "workers": 2, "learners": 2},
    ],
)
def test_a_retraining_pod_is_configured_as_by_a_launcher(pod: dict[str, object], tmp_path: Path) -> None:
    spec = make_spec(pod=pod).pod
    again = settings_of(pod_config(spec, RetrainConfig("s", "m", tmp_path), "store"))
    pod_environment = PodEnvironment("o", "l", "store", tmp_path, tmp_path, "", 60.0, TelemetryConfig())
    launched = pod_settings(NewPod("p", "t", spec), pod_environment)
    # Retraining runs on this machine, wherever the pod was before, and no orchestrator watches it.
    place = {"pod_id", "tournament_id", "orchestrator", "leaderboard", "orphan_seconds", "telemetry", "hosts", "allow"}
    place.add("progress")
    assert {key: again[key] for key in launched.keys() - place} == {
        key: launched[key] for key in launched.keys() - place
    }
    assert pod_config(spec, RetrainConfig("s", "m", tmp_path), "store").roles == roles_of(spec)


def test_a_starting_checkpoint_is_copied_completely_or_reported_as_missing(tmp_path: Path) -> None:
    source, target = FolderStore(tmp_path / "from"), FolderStore(tmp_path / "to")
    claim(source, "parent", 1)
    name = publish(source, "parent", 1, {"policy": b"p", "learner": b"l"}, Manifest())
    copy_checkpoint(source, target, name)
    assert fetch(target, name)[1] == {"policy": b"p", "learner": b"l"}
    with pytest.raises(NotFound, match="the starting checkpoint was garbage-collected"):
        copy_checkpoint(source, target, 64 * "0")


def test_the_manifest_of_an_agent_with_new_networks_names_no_starting_checkpoint() -> None:
    manifest = Manifest()
    add_provenance(manifest, Agent(), Struct())
    assert not manifest.starting_manifest_digest


def test_a_folder_that_is_not_empty_is_rejected_and_not_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("must not be removed")
    config = RetrainConfig(f"folder://{tmp_path}", PARENT, tmp_path, telemetry=TelemetryConfig(metrics_listen=""))
    with pytest.raises(InvalidArgument, match="is not empty, and would be removed in the end"):
        run(config)
    assert precious.read_text() == "must not be removed"
