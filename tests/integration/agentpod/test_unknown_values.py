"""A pod does what the contract says with values that its build does not know."""

import pytest

from agentpod.learner import leader
from agentpod.process.wiring import run_leader
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import fetch_latest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

UNKNOWN = 99


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("UNKNOWN_ANSWER_SECONDS", "GIVEN_UP_SECONDS"):
        monkeypatch.setattr(leader, pause, 0.01)


async def run(mesh, *assignments: pb.Assignment | None) -> pb.CompleteAssignmentRequest:
    """Runs a pod on these assignments, of which None is an answer without a known field; returns what it completed."""
    mesh.orchestrator.assignments.extend(assignments)
    config = mesh.pod_config("fused")
    config.folder.mkdir(exist_ok=True, mode=0o700)
    assert await run_leader(config) == 0
    (completed,) = mesh.orchestrator.completed
    return completed


async def test_an_unknown_directive_drains_the_pod(mesh, make_spec, make_assignment):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = UNKNOWN, 1
    spec = make_spec(steps=10**7, evaluation={"episodes": 4, "every_environment_steps": 10**7})
    completed = await run(mesh, make_assignment(spec))
    assert completed.outcome == pb.OUTCOME_DRAINED
    latest = fetch_latest(open_store(mesh.leaderboard.store_uri), "t-a0")
    assert latest is not None
    assert latest.manifest.environment_steps == completed.progress.environment_steps > 0


async def test_after_an_unknown_answer_the_pod_asks_again(mesh, make_spec, make_assignment):
    completed = await run(mesh, None, None, make_assignment(make_spec()))
    assert completed.outcome == pb.OUTCOME_FINISHED


async def test_an_unknown_kind_of_work_is_given_back(mesh, make_spec, make_assignment):
    assignment = make_assignment(make_spec())
    assignment.ClearField("work")
    completed = await run(mesh, assignment)
    assert completed.outcome == pb.OUTCOME_DRAINED
    assert completed.message == "this pod does not know this kind of work"
    assert not mesh.leaderboard.manifests


async def test_a_pod_that_gives_everything_back_asks_less_and_less_often(mesh, make_spec, make_assignment, monkeypatch):
    unknown = make_assignment(make_spec())
    unknown.ClearField("work")
    mesh.orchestrator.assignments.extend([unknown, unknown, unknown, make_assignment(make_spec()), unknown])
    pauses = []
    pause = leader.Leader._pause

    async def recorded(self, seconds, stop):
        pauses.append(round(100 * seconds))
        await pause(self, seconds, stop)

    monkeypatch.setattr(leader.Leader, "_pause", recorded)
    config = mesh.pod_config("fused")
    config.folder.mkdir(exist_ok=True, mode=0o700)
    assert await run_leader(config) == 0
    assert pauses == [1, 2, 4, 0, 1]
