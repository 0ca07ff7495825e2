"""A pod whose agent is rarely evaluated stores checkpoints between the evaluations."""

import pytest
from scripted import Mesh, run

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import read_manifest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

RARELY = {"episodes": 4, "every_environment_steps": 10**8}
HYPERPARAMETERS = {
    "ppo": {"horizon": 64, "minibatch_size": 128, "hidden_sizes": [16]},
    "sac": {"horizon": 16, "batch_size": 16, "hidden_sizes": [16], "replay_capacity": 4096, "warmup_steps": 64},
}


def newest(mesh: Mesh) -> tuple[Manifest, Manifest]:
    """The last checkpoint of the agent, and the one before."""
    store = open_store(mesh.leaderboard.store_uri)
    found = store.read_pointer("t-a0")
    assert found is not None
    last, previous = found[0].manifest_digest, found[0].previous_manifest_digest
    return read_manifest(store, last), read_manifest(store, previous)


@pytest.mark.parametrize("algorithm", HYPERPARAMETERS)
async def test_a_complete_checkpoint_without_a_score_is_stored_between_evaluations(
    mesh, make_spec, make_assignment, algorithm
):
    budget = {"environment_steps": 10**8, "duration": "3500ms", "checkpoint_period": "1s"}
    algorithms = {algorithm: {"hyperparameters": HYPERPARAMETERS[algorithm]}}
    spec = make_spec("Pendulum-v1", algorithms=algorithms, assignment=budget, evaluation=RARELY)
    await run(mesh, make_assignment(spec))
    last, interim = newest(mesh)
    assert last.HasField("evaluation")
    assert not interim.HasField("evaluation")
    assert 0 < interim.environment_steps < last.environment_steps
    assert len(mesh.leaderboard.manifests) == 1, "the other one is not submitted"
    names = {part.name for part in interim.parts}
    assert names >= {"learner", "policy"}
    assert any(name.startswith("replay") for name in names) == (algorithm == "sac")
    assert {part.name for part in last.parts} >= {"learner", "policy"}


async def test_an_agent_that_is_evaluated_more_often_has_no_others(mesh, make_spec, make_assignment):
    await run(mesh, make_assignment(make_spec()))
    assert all(one.HasField("evaluation") for one in newest(mesh))


async def test_the_next_pod_submits_a_score_that_waited_for_the_leaderboard_when_an_off_policy_agent_was_drained(
    mesh, make_spec, make_assignment
):
    """An agent has two checkpoints: one of its last state with the replay memory, and the scored one."""
    algorithms = {"sac": {"hyperparameters": HYPERPARAMETERS["sac"]}}
    evaluation = {"episodes": 4, "every_environment_steps": 256}
    spec = make_spec("Pendulum-v1", steps=10**8, algorithms=algorithms, evaluation=evaluation)
    mesh.leaderboard.refuse = 10**6
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 600
    await run(mesh, make_assignment(spec))
    last, scored = newest(mesh)
    assert not last.HasField("evaluation")
    assert any(part.name.startswith("replay") for part in last.parts)
    mesh.leaderboard.refuse = mesh.orchestrator.after_steps = 0
    await run(mesh, make_assignment(spec, epoch=2))
    assert mesh.leaderboard.manifests[0] == scored
