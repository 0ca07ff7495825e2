"""Pods that cannot start end a tournament; pods that die from outside, or stop responding, do not."""

from typing import Any

import pytest
from fake_services import STARTING_SILENT_SECONDS

from orchestrator.decisions.dispatch import MOST_LOSSES
from orchestrator.decisions.pool_size import LONGEST_BACKOFF_SECONDS, MAXIMUM_DEATHS
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
DEATHS = MAXIMUM_DEATHS + 1
LONGEST_WAIT_SECONDS = 60.0


@pytest.fixture
async def single(mesh: Any, spec: Any) -> str:
    """Creates a tournament with one pod, and returns its id."""
    name: str = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    return name


async def silent_for(mesh: Any, seconds: float) -> None:
    for _ in range(int(seconds)):
        await mesh.cycle(1.0)


async def next_pod(mesh: Any) -> tuple[str, float]:
    """Waits until a pod has been started; returns it and how long that took in seconds."""
    waited = 0.0
    await mesh.cycle()
    while not mesh.launcher.pods and waited < LONGEST_WAIT_SECONDS:
        waited += 0.25
        await mesh.cycle(0.25)
    (pod_id,) = mesh.launcher.pods
    return pod_id, waited


async def die_from_outside(mesh: Any, log_line: str = "") -> None:
    mesh.launcher.pods.clear()
    mesh.launcher.log_line = log_line
    await mesh.cycle()


async def state_of(mesh: Any, name: str) -> Any:
    return (await mesh.get(name)).state


async def test_silent_pods_in_a_row_are_replaced_at_once_and_do_not_end_a_tournament(mesh: Any, single: str) -> None:
    for number in range(DEATHS):
        pod_id, waited = await next_pod(mesh)
        assert (pod_id, waited) == (f"{single}-p{number}", 0.0)
        await mesh.assigned(pod_id)
        await silent_for(mesh, 22.0)
    assert mesh.launcher.stopped == [(f"{single}-p{number}", True) for number in range(DEATHS)]
    assert await state_of(mesh, single) == RUNNING


async def test_the_cycle_that_notices_a_death_starts_the_next_pod(
    mesh: Any, single: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_id, _ = await next_pod(mesh)
    await mesh.renew(await mesh.assigned(pod_id), environment_steps=1000, update_age_seconds=0.1)
    mesh.launcher.pods.clear()

    def slow_log_line(pod_id: str) -> str:
        mesh.clock.now += 0.1
        return ""

    monkeypatch.setattr(mesh.launcher, "last_log_line", slow_log_line)
    await mesh.reconciler.cycle()
    assert list(mesh.launcher.pods) == [f"{single}-p1"]
    assert "pool_short" not in await mesh.kinds(single)


async def test_pods_killed_from_outside_after_they_trained_do_not_end_a_tournament_but_start_later_each_time(
    mesh: Any, single: str
) -> None:
    waits = []
    for number in range(DEATHS):
        pod_id, waited = await next_pod(mesh)
        waits.append(waited)
        await mesh.renew(await mesh.assigned(pod_id), environment_steps=1000 - number, update_age_seconds=0.1)
        await die_from_outside(mesh)
    assert waits == [0.0, 0.0, 0.5, 1.0, 2.0, 4.0]
    assert (await state_of(mesh, single), (await mesh.get(single)).failed_agents) == (RUNNING, 0)


async def test_steps_show_that_a_pod_works_also_without_the_age_of_an_update(mesh: Any, single: str) -> None:
    for _ in range(DEATHS):
        work = await mesh.assigned((await next_pod(mesh))[0])
        for steps in (500, 600):
            # A pod reports the steps of the checkpoint that it continues before it has trained.
            await mesh.renew(work, environment_steps=steps)
        await die_from_outside(mesh)
    assert await state_of(mesh, single) == RUNNING


async def test_pods_that_die_while_they_open_their_roles_end_a_tournament(mesh: Any, single: str) -> None:
    work = await mesh.assigned((await next_pod(mesh))[0])
    await mesh.renew(work, environment_steps=500, update_age_seconds=0.1)
    # The progress is saved every few seconds.
    await mesh.cycle(5.0)
    for _ in range(MAXIMUM_DEATHS):
        await die_from_outside(mesh, "error: no such image")
        work = await mesh.assigned((await next_pod(mesh))[0])
        await mesh.renew(work, environment_steps=500)
    assert await state_of(mesh, single) == RUNNING
    await die_from_outside(mesh, "error: no such image")
    assert await state_of(mesh, single) == FAILED
    reason = f"no such image ({MAXIMUM_DEATHS} pods in a row died before they trained or scored anything)"
    assert (await mesh.get(single)).reason == reason


async def test_pods_that_never_call_end_a_tournament(mesh: Any, single: str) -> None:
    for _ in range(MAXIMUM_DEATHS):
        assert await state_of(mesh, single) == RUNNING
        await next_pod(mesh)
        await silent_for(mesh, STARTING_SILENT_SECONDS + 2.0)
    assert len(mesh.launcher.stopped) == MAXIMUM_DEATHS
    assert await state_of(mesh, single) == FAILED


@pytest.mark.parametrize(
    ("activity", "state"), [(pb.POD_ACTIVITY_TRAINING, RUNNING), (pb.POD_ACTIVITY_OPENING, FAILED)]
)
async def test_pods_that_are_stuck_do_not_end_a_tournament_if_they_were_training(
    mesh: Any, single: str, activity: pb.PodActivity.ValueType, state: tournament_pb2.TournamentState.ValueType
) -> None:
    for _ in range(MAXIMUM_DEATHS):
        work = await mesh.assigned((await next_pod(mesh))[0])
        stuck = pb.StuckRole(number=1, progress=pb.RoleProgress(role="learner"), reason="it makes no progress")
        request = pb.RenewAssignmentRequest(
            assignment_id=work.assignment_id,
            lease_epoch=work.lease_epoch,
            progress=pb.Progress(activity=activity),
            stuck_roles=[stuck],
        )
        await mesh.call("RenewAssignment", request)
        await die_from_outside(mesh)
    assert await state_of(mesh, single) == state


async def test_an_agent_whose_pods_crash_again_and_again_fails_and_a_tournament_of_such_agents_ends(
    mesh: Any, single: str
) -> None:
    waits, agents = [], []
    while await state_of(mesh, single) == RUNNING:
        pod_id, waited = await next_pod(mesh)
        work = await mesh.assigned(pod_id)
        await mesh.renew(work, environment_steps=100, update_age_seconds=0.1)
        waits.append(waited)
        agents.append(work.train.agent_id)
        await die_from_outside(mesh, "error: Segmentation fault")
    assert agents == [f"{single}-a{number}" for number in range(3) for _ in range(MOST_LOSSES)]
    assert max(waits) == LONGEST_BACKOFF_SECONDS
    cause = f"Segmentation fault ({MOST_LOSSES} pods in a row died while they trained it)"
    found = await mesh.get(single)
    assert (found.state, found.failed_agents) == (FAILED, 3)
    assert found.reason == f"3 agents failed in a row, the last one with: {cause}"
    events = [event.message for event in await mesh.events(single) if event.kind == "agent_failed"]
    assert events[0] == f"{single}-a0 failed after 100 steps: {cause}"


@pytest.mark.parametrize("progress", ["score", "checkpoint", "publication"])
async def test_a_pod_that_brings_its_agent_further_ends_the_row_of_deaths(
    mesh: Any, single: str, progress: str
) -> None:
    for _ in range(2 * MOST_LOSSES):
        pod_id, waited = await next_pod(mesh)
        assert waited == 0.0
        work = await mesh.assigned(pod_id)
        assert work.train.agent_id == f"{single}-a0"
        if progress == "score":
            await mesh.renew(work, environment_steps=100, update_age_seconds=0.1, score=1.0)
        elif progress == "checkpoint":
            await mesh.renew(work, environment_steps=100, update_age_seconds=0.1, stored_environment_steps=90)
        else:
            last = pb.Progress(environment_steps=100, update_age_seconds=0.1)
            await mesh.complete(work, pb.OUTCOME_DRAINED, message="SIGTERM", progress=last)
        await die_from_outside(mesh)
    assert (await mesh.get(single)).failed_agents == 0


async def test_a_pod_that_ends_an_evaluation_is_no_loss_of_its_agent(mesh: Any, single: str) -> None:
    work = await mesh.assigned((await next_pod(mesh))[0])
    await mesh.complete(work, pb.OUTCOME_DRAINED, progress=pb.Progress(update_age_seconds=0.1))
    await mesh.evaluate(single)
    assert (await mesh.assigned(f"{single}-p0")).WhichOneof("work") == "evaluate"
    await die_from_outside(mesh)
    assert await mesh.state.transact(lambda one: one.execute("SELECT * FROM losses")) == []


async def test_the_agent_of_a_silent_pod_that_another_pod_holds_by_now_does_not_fail(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=2, maximum_pods=2))
    await mesh.cycle()
    lost, spare = 0, 1
    for _ in range(MOST_LOSSES):
        work = await mesh.assigned(f"{name}-p{lost}")
        assert work.train.agent_id == f"{name}-a0"
        await mesh.cycle(0.0)
        lost, spare = spare, max(lost, spare) + 1
        await silent_for(mesh, 11.0)
        held = await mesh.assigned(f"{name}-p{lost}")
        for _ in range(4):
            await silent_for(mesh, 3.0)
            await mesh.renew(held)
        assert held.train.agent_id == f"{name}-a0"
    assert (await mesh.get(name)).failed_agents == 0


async def test_pods_that_are_replaced_because_the_leaderboard_is_away_end_neither_tournament_nor_agent(
    mesh: Any, single: str
) -> None:
    """The agent has finished: the pods make no update and only submit its score."""
    for _ in range(2 * MOST_LOSSES):
        pod_id, waited = await next_pod(mesh)
        assert waited == 0.0
        work = await mesh.assigned(pod_id)
        assert work.train.agent_id == f"{single}-a0"
        last = pb.Progress(environment_steps=100, storage_fault="no answer for 300 s")
        await mesh.complete(work, pb.OUTCOME_DRAINED, message="no answer for 300 s", progress=last)
        await die_from_outside(mesh)
    assert (await state_of(mesh, single), (await mesh.get(single)).failed_agents) == (RUNNING, 0)
