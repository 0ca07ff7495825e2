import asyncio
import threading
from typing import Any

import pytest

from orchestrator.assignments import transactions
from orchestrator.decisions.dispatch import Holder
from orchestrator.decisions.pool_size import PodActivity
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
STALE = "ERROR_REASON_STALE_EPOCH"


async def test_each_pod_gets_the_next_agent_with_the_whole_specification(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert [work.train.agent_id for work in works] == [f"{name}-a0", f"{name}-a1"]
    assert works[0].assignment_id == f"{name}-a0.1"
    assert works[0].spec.evaluation.episodes == 64
    assert works[0].lease_duration.seconds == 10
    assert list(mesh.leaderboard.generate_requests[1].unfinished_agent_ids) == [f"{name}-a0"]
    assert (await mesh.get(name)).agents == 2


async def test_the_evaluation_epoch_comes_with_assignments_and_renewals(mesh: Any, spec: Any) -> None:
    ended_by_steps = spec()
    ended_by_steps.objective.CopyFrom(tournament_pb2.ObjectiveSpec(environment_steps=8000))
    ended_by_steps.assignment.environment_steps = 4000
    name = await mesh.create(ended_by_steps)
    await mesh.cycle()
    first = await mesh.assigned(f"{name}-p0")
    assert first.evaluation_epoch == 0
    assert (await mesh.renew(first, environment_steps=3000)).evaluation_epoch == 3
    assert (await mesh.assigned(f"{name}-p1")).evaluation_epoch == 3


async def test_a_repeated_request_returns_the_held_assignment(mesh: Any, name: str) -> None:
    first, again = await mesh.assigned(f"{name}-p0"), await mesh.assigned(f"{name}-p0")
    assert first == again
    assert len(mesh.leaderboard.generate_requests) == 1


async def test_concurrent_requests_of_different_pods_never_get_the_same_agent(mesh: Any, name: str) -> None:
    answers = await asyncio.gather(*(mesh.assigned(f"{name}-p{number}") for number in (0, 1, 0, 1)))
    assert sorted(work.train.number for work in answers) == [0, 0, 1, 1]
    assert {work.lease_epoch for work in answers} == {1}


async def test_an_expired_agent_is_assigned_to_the_next_pod_and_the_first_lease_is_stale(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0")
    await mesh.cycle(10.0)
    second = await mesh.assigned(f"{name}-p1")
    assert (second.train.agent_id, second.lease_epoch) == (first.train.agent_id, 2)
    for call in (mesh.renew, mesh.complete):
        with pytest.raises(FailedPrecondition, match="stop without publishing") as raised:
            await call(first)
        assert raised.value.reason == STALE
    assert (await mesh.renew(second)).directive == pb.DIRECTIVE_CONTINUE


async def test_an_expired_lease_that_was_not_assigned_again_is_renewed(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0")
    await mesh.cycle(30.0)
    assert (await mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE
    assert (await mesh.assigned(f"{name}-p1")).train.number == 1


async def test_a_restarted_pod_gets_its_agent_under_a_new_epoch(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0", "first-run")
    second = await mesh.assigned(f"{name}-p0", "second-run")
    assert (second.train.agent_id, second.lease_epoch) == (first.train.agent_id, 2)
    with pytest.raises(FailedPrecondition):
        await mesh.renew(first)


async def test_the_agent_of_a_dead_pod_is_assigned_to_the_next_pod_at_once(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0")
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.cycle()
    second = await mesh.assigned(f"{name}-p1")
    assert (second.train.agent_id, second.lease_epoch) == (first.train.agent_id, 2)


async def test_a_drained_agent_is_assigned_again_and_a_finished_one_is_not(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0], pb.OUTCOME_DRAINED)
    await mesh.complete(works[1], pb.OUTCOME_FINISHED)
    assert (await mesh.assigned(f"{name}-p1")).assignment_id == f"{name}-a0.2"
    assert (await mesh.assigned(f"{name}-p0")).train.number == 2


async def test_a_pod_that_cancels_its_request_leaves_a_lease_that_expires(mesh: Any, name: str) -> None:
    proceed = threading.Event()
    busy = asyncio.create_task(mesh.state.transact(lambda transaction: proceed.wait(10)))
    request = asyncio.create_task(mesh.assignments.acquire(Holder(f"{name}-p0", "run"), 0.0))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    proceed.set()
    await busy
    await mesh.get(name)  # answered after all earlier transactions
    await mesh.cycle(10.0)
    second = await mesh.assigned(f"{name}-p1")
    assert second.assignment_id == f"{name}-a0.2"


async def test_a_repeated_request_gets_the_held_agent_and_not_a_free_one(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0], pb.OUTCOME_DRAINED)
    assert await mesh.assigned(f"{name}-p1") == works[1]


async def test_an_agent_that_finishes_during_a_request_is_not_assigned(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.cycle(10.0)
    proceed = threading.Event()
    busy = asyncio.create_task(mesh.state.transact(lambda transaction: proceed.wait(10)))
    completion = pb.CompleteAssignmentRequest(
        request_id="r", assignment_id=work.assignment_id, lease_epoch=1, outcome=pb.OUTCOME_FINISHED
    )
    completing = asyncio.create_task(mesh.assignments.complete(completion))
    request = asyncio.create_task(mesh.assignments.acquire(Holder(f"{name}-p1", "run"), 0.0))
    for _ in range(10):
        await asyncio.sleep(0)
    proceed.set()
    await asyncio.gather(busy, completing)
    assert (await request).work.work_id == f"{name}-a1"


async def test_completing_twice_has_the_effect_of_completing_once(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    for _ in range(2):
        await mesh.complete(work, progress=pb.Progress(environment_steps=50))
    assert (await mesh.get(name)).environment_steps == 50
    assert (await mesh.kinds(name)).count("agent_finished") == 1
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_CANCEL


async def test_requests_with_invalid_fields_are_rejected(mesh: Any, name: str) -> None:
    for assignment_id in ("", "nonsense", f"{name}-a7.1"):
        with pytest.raises(NotFound):
            await mesh.renew(pb.Assignment(assignment_id=assignment_id, lease_epoch=1))
    with pytest.raises(InvalidArgument, match="outcome = 0"):
        await mesh.complete(await mesh.assigned(f"{name}-p0"), pb.OUTCOME_UNSPECIFIED)
    with pytest.raises(InvalidArgument, match="expected at most"):
        await mesh.renew(await mesh.assigned(f"{name}-p0"), environment_steps=2**64 - 1)
    with pytest.raises(InvalidArgument, match="incarnation"):
        await mesh.acquire(f"{name}-p0", incarnation="")


async def test_an_unknown_pod_gets_no_work_and_is_not_dismissed(mesh: Any) -> None:
    assert (await mesh.acquire("other")).WhichOneof("answer") == "retry_after"


async def test_each_evaluator_fault_is_recorded_once_until_it_changes(mesh: Any, name: str) -> None:
    async def recorded() -> list[str]:
        return [event.message for event in await mesh.events(name) if event.kind == "evaluator_replaced"]

    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(work, score=1.0)
    assert await recorded() == []
    for fault in ("it crashed", "it crashed", "", "it crashed", "it hangs"):
        await mesh.renew(work, evaluator_fault=fault)
    expected = [
        f"{name}-p0 falls back to the built-in evaluator for a while: {fault}"
        for fault in ("it crashed", "it crashed", "it hangs")
    ]
    assert sorted(await recorded()) == expected
    # The final report may be the only one with a fault.
    await mesh.complete(work, progress=pb.Progress(evaluator_fault="x" * 10_000))
    assert len(await recorded()) == 4
    assert max(map(len, await recorded())) < 600


async def test_the_final_report_and_the_end_of_the_lease_are_one_transaction(
    mesh: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await mesh.assigned(f"{name}-p0")
    state, steps = mesh.assignments._state, list[Any]()
    transact = state.transact

    async def once(function: Any, *arguments: Any) -> Any:
        steps.append(function)
        if len(steps) > 1:
            raise ResourceExhausted("the disk is full")
        return await transact(function, *arguments)

    monkeypatch.setattr(state, "transact", once)
    await mesh.complete(work, progress=pb.Progress(evaluator_fault="it crashed", environment_steps=5))
    monkeypatch.undo()
    assert steps == [transactions.complete_lease]
    assert not mesh.runtime.leases.held
    assert "evaluator_replaced" in await mesh.kinds(name)


async def test_the_activity_of_a_restarted_pod_ignores_the_lease_of_its_previous_run(mesh: Any, name: str) -> None:
    pod_id = f"{name}-p0"
    left = await mesh.assigned(pod_id, "first run")
    await mesh.renew(left, activity=pb.POD_ACTIVITY_PUBLISHING, score=1.0)
    assert mesh.runtime.leases.pod_activity(pod_id, mesh.clock.now) == PodActivity(True, True, 1.0)
    evaluation_id = await mesh.evaluate(name)
    work = await mesh.assigned(pod_id, "second run")
    assert work.evaluate.evaluation_id == evaluation_id
    shown = next(pod for pod in await mesh.pods(name) if pod.pod_id == pod_id)
    assert (shown.agent_id, shown.activity) == ("", pb.POD_ACTIVITY_OPENING)
    assert mesh.runtime.leases.pod_activity(pod_id, mesh.clock.now) == PodActivity(True, False, None)


async def test_progress_is_shown_to_users(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(
        work, activity=pb.POD_ACTIVITY_TRAINING, environment_steps=500, steps_per_second=250.0, policy_lag=0.5
    )
    await mesh.cycle()
    training, starting = await mesh.pods(name)
    assert (training.activity, training.agent_id) == (pb.POD_ACTIVITY_TRAINING, f"{name}-a0")
    assert training.progress.policy_lag == 0.5
    assert starting.activity == pb.POD_ACTIVITY_STARTING
    seen = await mesh.get(name)
    assert (seen.environment_steps, seen.steps_per_second) == (500, 250.0)


# --- waiting -----------------------------------------------------------------------------------------------------


async def test_a_wait_of_any_valid_length_is_accepted_and_no_other(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    request = pb.AcquireAssignmentRequest(pod_id=f"{name}-p0", incarnation="run")
    for seconds in (2**63 - 1, -(2**63), -1):
        request.wait_duration.seconds = seconds
        with pytest.raises(InvalidArgument, match="wait_duration"):
            await mesh.call("AcquireAssignment", request)
    request.wait_duration.seconds = 315_576_000_000
    assert (await mesh.call("AcquireAssignment", request)).WhichOneof("answer") == "assignment"


async def test_a_waiting_pod_is_woken_by_new_work(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0])
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    await mesh.complete(works[1])
    await mesh.cycle()
    assert (await waiting).assignment.train.number == 2


async def test_a_waiting_pod_is_woken_by_the_end_of_its_tournament(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0])
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    await mesh.cancel(name, "enough")
    assert (await waiting).drain.endswith("enough")


async def test_a_waiting_pod_is_answered_when_the_server_stops(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.complete(work)
    await mesh.assigned(f"{name}-p1")
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    mesh.servicer.close()
    assert (await waiting).WhichOneof("answer") == "retry_after"


# --- the generator -----------------------------------------------------------------------------------------------


async def test_no_number_is_lost_or_used_twice_if_the_generator_fails(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = FailedPrecondition("not now")
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after"
    mesh.leaderboard.refusal = None
    assert (await mesh.assigned(f"{name}-p0")).assignment_id == f"{name}-a0.1"
    assert (await mesh.assigned(f"{name}-p1")).train.number == 1


async def test_an_agent_whose_pod_died_before_generation_is_generated_for_the_next_pod(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = FailedPrecondition("not now")
    await mesh.acquire(f"{name}-p0")
    mesh.leaderboard.refusal = None
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.cycle()
    assert (await mesh.assigned(f"{name}-p1")).assignment_id == f"{name}-a0.2"


async def test_a_specification_that_the_generator_rejects_fails_the_tournament(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = InvalidArgument("evolution.strategy: unknown strategy 'luck'")
    assert "unknown strategy" in (await mesh.acquire(f"{name}-p0")).drain
    assert (await mesh.get(name)).state == FAILED


# --- failures ----------------------------------------------------------------------------------------------------


async def test_three_failed_agents_in_a_row_fail_the_tournament(mesh: Any, name: str) -> None:
    for _ in range(2):
        await mesh.fail(name)
    await mesh.fail(name, pb.OUTCOME_FINISHED)
    for _ in range(2):
        await mesh.fail(name)
    assert (await mesh.get(name)).state == RUNNING
    await mesh.fail(name)
    failed = await mesh.get(name)
    assert failed.state == FAILED
    assert failed.reason == "3 agents failed in a row, the last one with: loss is NaN"
    assert (failed.agents, failed.failed_agents) == (6, 5)


async def test_a_pod_that_reports_an_invalid_specification_fails_the_tournament_at_once(mesh: Any, name: str) -> None:
    other = await mesh.assigned(f"{name}-p1")
    await mesh.fail(name, pb.OUTCOME_SPEC_FAILED)
    assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (FAILED, "loss is NaN")
    assert (await mesh.renew(other)).directive == pb.DIRECTIVE_DRAIN


async def test_resuming_resets_the_failure_count(mesh: Any, name: str) -> None:
    for _ in range(3):
        await mesh.fail(name)
    await mesh.resume(name)
    await mesh.fail(name)
    assert (await mesh.get(name)).state == RUNNING


async def test_a_stopping_service_rejects_new_tournaments(mesh: Any, spec: Any, name: str) -> None:
    mesh.servicer.refuse_new()
    request = pb.CreateTournamentRequest(request_id="late", spec=spec())
    with pytest.raises(Unavailable, match="is stopping"):
        await mesh.servicer.CreateTournament(request, None)
    assert (await mesh.assigned(f"{name}-p0")).train.number == 0
