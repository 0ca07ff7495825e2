"""A pod takes snapshots of its agent at multiples of the tournament's running time."""

import pytest
from scripted import Mesh, run

from agentpod.learner.policy_loader import load_published_policy
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import fetch, fetch_latest
from podrace.checkpoint_store.snapshots import is_snapshot
from podrace.errors import ResourceExhausted
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

PERIOD = {"episodes": 4, "snapshot_period": "1s"}


def at(seconds: float, assignment: pb.Assignment) -> pb.Assignment:
    assignment.running_duration.FromNanoseconds(round(seconds * 1e9))
    return assignment


def numbers(mesh: Mesh) -> list[int]:
    return [one.number for one in mesh.leaderboard.snapshots]


async def test_a_snapshot_is_taken_at_each_multiple_of_the_period(mesh, make_spec, make_assignment):
    budget = {"environment_steps": 10**8, "duration": "2500ms"}
    await run(mesh, at(7.5, make_assignment(make_spec(assignment=budget, evaluation=PERIOD))))
    taken = mesh.leaderboard.snapshots
    assert numbers(mesh)[:2] == [8, 9]
    assert numbers(mesh) == list(range(8, 8 + len(taken)))
    store = open_store(mesh.leaderboard.store_uri)
    steps = []
    for one in taken:
        manifest, files = fetch(store, one.checkpoint.manifest_digest)
        assert list(files) == ["policy"]
        assert is_snapshot(manifest)
        assert (manifest.agent_id, manifest.tournament_id, manifest.algorithm) == ("t-a0", "t", "ppo")
        assert one.number <= one.running_duration.ToMilliseconds() / 1000 < one.number + 1
        assert load_published_policy(store, one.checkpoint.manifest_digest).tensors
        steps.append(manifest.environment_steps)
    assert steps == sorted(set(steps))
    latest = fetch_latest(store, "t-a0")
    assert latest is not None
    assert not is_snapshot(latest.manifest)


async def test_a_snapshot_holds_the_policy_of_the_moment_that_it_was_due(mesh, make_spec, make_assignment):
    """The clock reaches a multiple with the renewal that ends the training: the snapshot equals the last checkpoint."""
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    mesh.orchestrator.running_seconds = 1000.0
    spec = make_spec(steps=10**7, evaluation={**PERIOD, "snapshot_period": "1000s"})
    await run(mesh, at(5.0, make_assignment(spec)))
    (one,) = mesh.leaderboard.snapshots
    assert one.number == 1
    store = open_store(mesh.leaderboard.store_uri)
    drained = fetch_latest(store, "t-a0")
    assert drained is not None
    kept, files = fetch(store, one.checkpoint.manifest_digest)
    assert kept.policy_version == drained.manifest.policy_version
    assert kept.environment_steps == drained.manifest.environment_steps
    assert files["policy"] == drained.parts["policy"]


async def test_a_pod_that_takes_over_an_agent_continues_the_numbers(mesh, make_spec, make_assignment):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    mesh.orchestrator.running_seconds = 3.2
    spec = make_spec(steps=10**8, evaluation=PERIOD)
    await run(mesh, at(2.9, make_assignment(spec)))
    first = numbers(mesh)
    assert first[0] == 3
    mesh.orchestrator.running_seconds = 9.1
    await run(mesh, at(8.9, make_assignment(spec, epoch=2)))
    later = numbers(mesh)[len(first) :]
    assert later[0] == 9
    assert {one.lease_epoch for one in mesh.leaderboard.snapshots[len(first) :]} == {2}


async def test_without_a_period_or_a_running_time_there_are_no_snapshots(mesh, make_spec, make_assignment):
    await run(mesh, at(0.999, make_assignment(make_spec())), make_assignment(make_spec(evaluation=PERIOD), number=1))
    assert numbers(mesh) == []


@pytest.mark.parametrize("broken", ["leaderboard", "store"])
async def test_a_snapshot_that_cannot_be_published_does_not_affect_the_training(
    mesh, make_spec, make_assignment, monkeypatch, broken
):
    if broken == "leaderboard":
        mesh.leaderboard.refuse_snapshots = True
    else:
        monkeypatch.setattr("agentpod.learner.publisher.store_snapshot", refuse)
    assert await run(mesh, at(0.999, make_assignment(make_spec(evaluation=PERIOD)))) == 0
    (completed,) = mesh.orchestrator.completed
    assert completed.outcome == pb.OUTCOME_FINISHED
    assert mesh.leaderboard.manifests
    assert numbers(mesh) == []


def refuse(*_: object) -> str:
    raise ResourceExhausted("the store is full")


async def test_snapshots_do_not_change_the_training(mesh, make_spec, make_assignment):
    parts = []
    for number, evaluation in enumerate(({"episodes": 4}, PERIOD)):
        spec = make_spec(synchronous=True, pool={"maximum_pods": 1}, evaluation=evaluation)
        assignment = at(0.999, make_assignment(spec))
        assignment.assignment_id, assignment.train.agent_id = f"t{number}-a0.1", f"t{number}-a0"
        mesh.leaderboard.manifests.clear()
        await run(mesh, assignment)
        parts.append([(part.name, part.digest) for manifest in mesh.leaderboard.manifests for part in manifest.parts])
    assert numbers(mesh)
    assert parts[0] == parts[1]
