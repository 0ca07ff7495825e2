"""A standing pod survives tournaments, refusals and silence, and exits when its lifeline is lost."""

import asyncio

import pytest
from scripted import until

from agentpod.learner import leader
from agentpod.process.wiring import run_leader
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import fetch_latest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.processes import lifeline

LONG = {"steps": 10**7, "evaluation": {"episodes": 4, "every_environment_steps": 10**7}}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("REFUSED_SECONDS", "RETRY_SECONDS", "GIVEN_UP_SECONDS"):
        monkeypatch.setattr(leader, pause, 0.01)


def standing(mesh, **changes):
    """Starts a standing pod; it exits when the lifeline `outside` is lost."""
    config = mesh.pod_config("fused", standing=True, lifeline=str(mesh.folder / "outside"), **changes)
    config.folder.mkdir(exist_ok=True, mode=0o700)
    return asyncio.create_task(run_leader(config))


async def test_asked_to_drain_it_gives_its_agent_back_and_takes_the_next(mesh, make_spec, make_assignment):
    mesh.orchestrator.directive, mesh.orchestrator.after_steps = pb.DIRECTIVE_DRAIN, 1
    mesh.orchestrator.assignments += [make_assignment(make_spec(**LONG), number=number) for number in (0, 1)]
    with lifeline.hold(mesh.folder / "outside"):
        pod = standing(mesh)
        await until(lambda: len(mesh.orchestrator.completed) == 2)
        assert not pod.done()
    assert await pod == 0
    assert [completed.outcome for completed in mesh.orchestrator.completed] == [pb.OUTCOME_DRAINED] * 2


async def test_after_a_refusal_it_asks_again(mesh, make_spec, make_assignment):
    # Without assignments the scripted orchestrator answers with drain.
    with lifeline.hold(mesh.folder / "outside"):
        pod = standing(mesh)
        await until(lambda: mesh.orchestrator.refused >= 2)
        mesh.orchestrator.assignments.append(make_assignment(make_spec()))
        await until(lambda: len(mesh.orchestrator.completed) == 1)
        assert not pod.done()
    assert await pod == 0


async def test_when_stopped_it_publishes_and_completes_its_assignment(mesh, make_spec, make_assignment):
    mesh.orchestrator.assignments.append(make_assignment(make_spec(**LONG)))
    with lifeline.hold(mesh.folder / "outside"):
        pod = standing(mesh)
        await until(lambda: any(renewal.progress.environment_steps for renewal in mesh.orchestrator.renewals))
    assert await pod == 0
    (completed,) = mesh.orchestrator.completed
    assert completed.outcome == pb.OUTCOME_DRAINED
    published = fetch_latest(open_store(mesh.leaderboard.store_uri), "t-a0")
    assert published is not None
    assert published.manifest.environment_steps == completed.progress.environment_steps > 0


async def test_without_an_orchestrator_it_waits_for_one(mesh, short_folder, monkeypatch):
    warned = []
    monkeypatch.setattr(leader._log, "warning", lambda message, **_: warned.append(message), raising=False)
    with lifeline.hold(mesh.folder / "outside"):
        pod = standing(mesh, orchestrator=f"unix:{short_folder}/missing.sock", orphan_seconds=0.05)
        await until(lambda: len(warned) >= 4)
        assert not pod.done()
    assert await pod == 0
