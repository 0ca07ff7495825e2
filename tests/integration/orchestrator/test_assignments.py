import asyncio
import threading
from typing import Any

import pytest

from orchestrator.assignments import transactions
from orchestrator.decisions.dispatch import Holder
from orchestrator.decisions.pool_size import PodActivity
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
STALE = "ERROR_REASON_STALE_EPOCH"


@pytest.fixture
async def name(mesh: Any, spec: Any) -> str:
    """A tournament with two pods."""
    created: str = await mesh.create(spec())
    await mesh.look()
    return created


async def test_each_pod_gets_the_next_agent_with_the_whole_specification(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert [work.train.agent_id for work in works] == [f"{name}-a0", f"{name}-a1"]
    assert works[0].assignment_id == f"{name}-a0.1"
    assert works[0].spec.evaluation.episodes == 32
    assert works[0].lease_duration.seconds == 10
    assert list(mesh.leaderboard.asked[1].unfinished_agent_ids) == [f"{name}-a0"]
    assert (await mesh.get(name)).agents == 2


async def test_a_repeat_returns_the_assignment_that_is_held(mesh: Any, name: str) -> None:
    first, again = await mesh.assigned(f"{name}-p0"), await mesh.assigned(f"{name}-p0")
    assert first == again
    assert len(mesh.leaderboard.asked) == 1


async def test_pods_that_ask_at_the_same_time_never_get_the_same_agent(mesh: Any, name: str) -> None:
    answers = await asyncio.gather(*(mesh.assigned(f"{name}-p{number}") for number in (0, 1, 0, 1)))
    assert sorted(work.train.number for work in answers) == [0, 0, 1, 1]
    assert {work.lease_epoch for work in answers} == {1}


async def test_an_expired_lease_goes_to_the_next_pod_and_makes_the_first_one_stale(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0")
    await mesh.look(10.0)
    second = await mesh.assigned(f"{name}-p1")
    assert (second.train.agent_id, second.lease_epoch) == (first.train.agent_id, 2)
    for call in (mesh.renew, mesh.complete):
        with pytest.raises(FailedPrecondition, match="stop without publishing") as raised:
            await call(first)
        assert raised.value.reason == STALE
    assert (await mesh.renew(second)).directive == pb.DIRECTIVE_CONTINUE


async def test_an_expired_lease_that_nobody_took_is_renewed(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0")
    await mesh.look(30.0)
    assert (await mesh.renew(first)).directive == pb.DIRECTIVE_CONTINUE
    assert (await mesh.assigned(f"{name}-p1")).train.number == 1


async def test_a_new_life_of_a_pod_takes_its_agent_over_at_once(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0", "first-life")
    second = await mesh.assigned(f"{name}-p0", "second-life")
    assert (second.train.agent_id, second.lease_epoch) == (first.train.agent_id, 2)
    with pytest.raises(FailedPrecondition):
        await mesh.renew(first)


async def test_the_agent_of_a_dead_pod_goes_to_the_next_one_at_once(mesh: Any, name: str) -> None:
    first = await mesh.assigned(f"{name}-p0")
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.look()
    second = await mesh.assigned(f"{name}-p1")
    assert (second.train.agent_id, second.lease_epoch) == (first.train.agent_id, 2)


async def test_a_drained_agent_goes_on_elsewhere_and_a_finished_one_does_not(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0], pb.OUTCOME_DRAINED)
    await mesh.complete(works[1], pb.OUTCOME_FINISHED)
    assert (await mesh.assigned(f"{name}-p1")).assignment_id == f"{name}-a0.2"
    assert (await mesh.assigned(f"{name}-p0")).train.number == 2


async def test_a_pod_that_hangs_up_while_it_is_given_an_agent_leaves_a_lease_that_expires(mesh: Any, name: str) -> None:
    free = threading.Event()
    busy = asyncio.create_task(mesh.state.transact(lambda transaction: free.wait(10)))
    requester = asyncio.create_task(mesh.assignments.acquire(Holder(f"{name}-p0", "life"), 0.0))
    await asyncio.sleep(0)
    requester.cancel()
    await asyncio.wait([requester])
    free.set()
    await busy
    await mesh.get(name)  # what was begun before is done when this is answered
    await mesh.look(10.0)
    second = await mesh.assigned(f"{name}-p1")
    assert second.assignment_id == f"{name}-a0.2"


async def test_a_pod_that_asks_again_gets_what_it_holds_and_not_what_has_become_free(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0], pb.OUTCOME_DRAINED)
    assert await mesh.assigned(f"{name}-p1") == works[1]


async def test_an_agent_that_is_finished_while_another_pod_asks_for_it_is_not_handed_out(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.look(10.0)
    free = threading.Event()
    busy = asyncio.create_task(mesh.state.transact(lambda transaction: free.wait(10)))
    completion = pb.CompleteAssignmentRequest(
        request_id="r", assignment_id=work.assignment_id, lease_epoch=1, outcome=pb.OUTCOME_FINISHED
    )
    completing = asyncio.create_task(mesh.assignments.complete(completion))
    requester = asyncio.create_task(mesh.assignments.acquire(Holder(f"{name}-p1", "life"), 0.0))
    for _ in range(10):
        await asyncio.sleep(0)
    free.set()
    await asyncio.gather(busy, completing)
    assert (await requester).work.work_id == f"{name}-a1"


async def test_completing_twice_does_no_harm(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    for _ in range(2):
        await mesh.complete(work, progress=pb.Progress(environment_steps=50))
    assert (await mesh.get(name)).environment_steps == 50
    assert (await mesh.kinds(name)).count("agent_finished") == 1
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_CANCEL


async def test_what_never_was_an_assignment_is_refused(mesh: Any, name: str) -> None:
    for assignment_id in ("", "nonsense", f"{name}-a7.1"):
        with pytest.raises(NotFound):
            await mesh.renew(pb.Assignment(assignment_id=assignment_id, lease_epoch=1))
    with pytest.raises(InvalidArgument, match="outcome = 0"):
        await mesh.complete(await mesh.assigned(f"{name}-p0"), pb.OUTCOME_UNSPECIFIED)
    with pytest.raises(InvalidArgument, match="no agent can take so many"):
        await mesh.renew(await mesh.assigned(f"{name}-p0"), environment_steps=2**64 - 1)
    with pytest.raises(InvalidArgument, match="incarnation"):
        await mesh.acquire(f"{name}-p0", incarnation="")


async def test_a_pod_that_nobody_started_is_drained(mesh: Any) -> None:
    assert (await mesh.acquire("stranger")).drain == "pod stranger is not known here"


async def test_an_evaluator_that_was_replaced_is_an_event_once_for_each_reason(mesh: Any, name: str) -> None:
    async def told() -> list[str]:
        return [event.message for event in await mesh.events(name) if event.kind == "evaluator_replaced"]

    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(work, score=1.0)
    assert await told() == []
    for fault in ("it crashed", "it crashed", "", "it crashed", "it hangs"):
        await mesh.renew(work, evaluator_fault=fault)
    said = [f"{name}-p0 scores with its own evaluator for a while: {why}" for why in ("it crashed", "it crashed")]
    said.append(f"{name}-p0 scores with its own evaluator for a while: it hangs")
    assert sorted(await told()) == sorted(said)
    # The last word of an assignment may be the only one.
    await mesh.complete(work, progress=pb.Progress(evaluator_fault="x" * 10_000))
    assert len(await told()) == 4
    assert max(map(len, await told())) < 600


async def test_what_a_pod_says_in_the_end_is_written_in_one_step_with_its_lease(
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


async def test_a_pod_is_judged_by_what_is_shown_of_it_not_by_what_an_earlier_life_left(mesh: Any, name: str) -> None:
    pod_id = f"{name}-p0"
    left = await mesh.assigned(pod_id, "first life")
    await mesh.renew(left, activity=pb.POD_ACTIVITY_PUBLISHING, score=1.0)
    assert mesh.runtime.leases.pod_activity(pod_id, mesh.clock.now) == PodActivity(True, True, 1.0)
    evaluation_id = await mesh.evaluate(name)
    work = await mesh.assigned(pod_id, "second life")
    assert work.evaluate.evaluation_id == evaluation_id
    shown = next(pod for pod in await mesh.pods(name) if pod.pod_id == pod_id)
    assert (shown.agent_id, shown.activity) == ("", pb.POD_ACTIVITY_OPENING)
    assert mesh.runtime.leases.pod_activity(pod_id, mesh.clock.now) == PodActivity(True, False, None)


async def test_progress_is_seen_by_people(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(
        work, activity=pb.POD_ACTIVITY_TRAINING, environment_steps=500, steps_per_second=250.0, policy_lag=0.5
    )
    await mesh.look()
    training, starting = await mesh.pods(name)
    assert (training.activity, training.agent_id) == (pb.POD_ACTIVITY_TRAINING, f"{name}-a0")
    assert training.progress.policy_lag == 0.5
    assert starting.activity == pb.POD_ACTIVITY_STARTING
    seen = await mesh.get(name)
    assert (seen.environment_steps, seen.steps_per_second) == (500, 250.0)


# --- waiting -----------------------------------------------------------------------------------------------------


async def test_a_pod_that_waits_is_woken_by_work(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.look()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0])
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    await mesh.complete(works[1])
    await mesh.look()
    assert (await waiting).assignment.train.number == 2


async def test_a_pod_that_waits_is_woken_by_the_end(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.look()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.complete(works[0])
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    await mesh.cancel(name, "enough")
    assert (await waiting).drain.endswith("enough")


async def test_a_pod_that_waits_is_sent_away_when_the_server_stops(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2, synchronous=True))
    await mesh.look()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.complete(work)
    await mesh.assigned(f"{name}-p1")
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    mesh.servicer.close()
    assert (await waiting).WhichOneof("answer") == "retry_after"


# --- the generator -----------------------------------------------------------------------------------------------


async def test_no_number_is_lost_or_used_twice_when_the_generator_is_away(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = FailedPrecondition("not now")
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after"
    mesh.leaderboard.refusal = None
    assert (await mesh.assigned(f"{name}-p0")).assignment_id == f"{name}-a0.1"
    assert (await mesh.assigned(f"{name}-p1")).train.number == 1


async def test_the_next_pod_has_the_agent_made_whose_first_pod_died_before_it_was(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = FailedPrecondition("not now")
    await mesh.acquire(f"{name}-p0")
    mesh.leaderboard.refusal = None
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.look()
    assert (await mesh.assigned(f"{name}-p1")).assignment_id == f"{name}-a0.2"


async def test_a_specification_that_the_generator_refuses_fails_the_tournament(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = InvalidArgument("evolution.strategy: unknown strategy 'luck'")
    assert "unknown strategy" in (await mesh.acquire(f"{name}-p0")).drain
    assert (await mesh.get(name)).state == FAILED


# --- failures ----------------------------------------------------------------------------------------------------


async def fail(mesh: Any, name: str, outcome: pb.Outcome.ValueType = pb.OUTCOME_AGENT_FAILED) -> None:
    await mesh.complete(await mesh.assigned(f"{name}-p0"), outcome, message="loss is NaN")


async def test_three_agents_that_fail_one_after_another_fail_the_tournament(mesh: Any, name: str) -> None:
    for _ in range(2):
        await fail(mesh, name)
    await fail(mesh, name, pb.OUTCOME_FINISHED)
    for _ in range(2):
        await fail(mesh, name)
    assert (await mesh.get(name)).state == RUNNING
    await fail(mesh, name)
    failed = await mesh.get(name)
    assert failed.state == FAILED
    assert failed.reason == "3 agents failed one after another; the last one: loss is NaN"
    assert (failed.agents, failed.failed_agents) == (6, 5)


async def test_a_specification_that_cannot_work_fails_the_tournament_at_once(mesh: Any, name: str) -> None:
    other = await mesh.assigned(f"{name}-p1")
    await fail(mesh, name, pb.OUTCOME_SPEC_FAILED)
    assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (FAILED, "loss is NaN")
    assert (await mesh.renew(other)).directive == pb.DIRECTIVE_DRAIN


async def test_a_resumed_tournament_begins_with_a_clean_sheet(mesh: Any, name: str) -> None:
    for _ in range(3):
        await fail(mesh, name)
    await mesh.resume(name)
    await fail(mesh, name)
    assert (await mesh.get(name)).state == RUNNING


# --- evaluations -------------------------------------------------------------------------------------------------


async def result(mesh: Any, evaluation_id: str) -> pb.GetEvaluationResponse:
    answer: pb.GetEvaluationResponse = await mesh.call(
        "GetEvaluation", pb.GetEvaluationRequest(evaluation_id=evaluation_id)
    )
    return answer


async def test_an_evaluation_is_pulled_before_agents_and_answered(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    assert not (await result(mesh, evaluation_id)).done
    work = await mesh.assigned(f"{name}-p0")
    assert work.evaluate.evaluation_id == evaluation_id
    assert work.evaluate.episodes == 4
    await mesh.renew(work, environment_steps=1000)
    await mesh.complete(work, evaluation=Evaluation(mean_return=3.5))
    answer = await result(mesh, evaluation_id)
    assert (answer.done, answer.evaluation.mean_return, answer.error) == (True, 3.5, "")
    assert (await mesh.get(name)).environment_steps == 0


async def test_an_evaluation_that_fails_says_why(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    await fail(mesh, name)
    answer = await result(mesh, evaluation_id)
    assert (answer.done, answer.error) == (True, "loss is NaN")
    assert (await mesh.get(name)).state == RUNNING


async def test_after_the_end_one_pod_comes_back_for_evaluations_and_goes_again(mesh: Any, name: str) -> None:
    await mesh.cancel(name)
    mesh.launcher.pods.clear()
    await mesh.look()
    assert await mesh.pods() == []
    evaluation_id = await mesh.evaluate(name)
    await mesh.look()
    (pod,) = await mesh.pods()
    work = await mesh.assigned(pod.pod_id)
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_CONTINUE
    await mesh.complete(work, evaluation=Evaluation(mean_return=1.0))
    assert (await mesh.acquire(pod.pod_id)).WhichOneof("answer") == "drain"
    assert (await result(mesh, evaluation_id)).done


async def test_an_evaluation_that_kills_its_pods_is_given_up(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    for _ in range(3):
        pod = next(iter(mesh.launcher.pods))
        assert (await mesh.assigned(pod)).evaluate.evaluation_id == evaluation_id
        mesh.launcher.pods.pop(pod)
        await mesh.look()
        await mesh.look(10.0)
    work = await mesh.assigned(next(iter(mesh.launcher.pods)))
    assert work.WhichOneof("work") == "train"
    assert (await result(mesh, evaluation_id)).error == "given up after 3 pods were lost with it"


async def test_an_evaluation_needs_a_checkpoint_and_a_tournament(mesh: Any, name: str) -> None:
    with pytest.raises(InvalidArgument, match="manifest_digest"):
        await mesh.call("CreateEvaluation", pb.CreateEvaluationRequest(request_id="e", tournament_id=name))
    with pytest.raises(NotFound):
        await mesh.evaluate("nobody")
    with pytest.raises(NotFound):
        await result(mesh, "nobody-e0")


# --- restarts ----------------------------------------------------------------------------------------------------


async def test_after_a_restart_pods_are_adopted_and_every_lease_lasts_one_full_duration(
    open_mesh: Any, spec: Any, clock: Any
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.look()
        work = await mesh.assigned(f"{name}-p0")
        await mesh.renew(work, environment_steps=300)
        await mesh.look(5.0)
        launcher = mesh.launcher
    clock.now += 1000.0
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.look()
        assert [pod.pod_id for pod in await mesh.pods(name)] == [f"{name}-p0", f"{name}-p1"]
        await mesh.look(9.0)
        assert (await mesh.assigned(f"{name}-p1")).train.number == 1, "the lease of agent 0 is still good"
        assert (await mesh.renew(work, environment_steps=310)).directive == pb.DIRECTIVE_CONTINUE
        seen = await mesh.get(name)
        assert (seen.state, seen.environment_steps) == (RUNNING, 310)
        assert seen.running_duration.seconds == 14, "the time nobody looked does not count"


async def test_after_a_restart_a_pod_that_died_meanwhile_is_replaced(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.look()
        await mesh.assigned(f"{name}-p0")
        launcher = mesh.launcher
    launcher.pods.clear()
    async with open_mesh(launcher=launcher) as mesh:
        await mesh.look()
        await mesh.look(1.0)
        assert (await mesh.assigned(f"{name}-p1")).assignment_id == f"{name}-a0.2"


async def test_after_a_restart_it_is_known_how_many_agents_failed(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.look()
        await fail(mesh, name)
    async with open_mesh(launcher=mesh.launcher) as mesh:
        assert (await mesh.get(name)).failed_agents == 1


async def test_a_request_repeated_after_a_restart_is_recognized(open_mesh: Any, spec: Any) -> None:
    request = pb.CreateTournamentRequest(request_id="r", spec=spec())
    async with open_mesh() as mesh:
        first = (await mesh.call("CreateTournament", request)).tournament.tournament_id
    async with open_mesh() as mesh:
        assert (await mesh.call("CreateTournament", request)).tournament.tournament_id == first


async def test_a_tournament_of_another_mesh_is_cancelled_and_can_be_resumed(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(mesh_id="first") as mesh:
        name = await mesh.create(spec(maximum_pods=1))
    async with open_mesh(mesh_id="first") as mesh:
        assert (await mesh.get(name)).state == RUNNING
    async with open_mesh(mesh_id="second") as mesh:
        assert (await mesh.get(name)).reason == "its mesh went away; resume it"
        await mesh.resume(name)
    async with open_mesh(mesh_id="second") as mesh:
        assert (await mesh.get(name)).state == RUNNING


async def test_a_stopping_service_takes_no_new_tournament(mesh: Any, spec: Any, name: str) -> None:
    mesh.servicer.refuse_new()
    request = pb.CreateTournamentRequest(request_id="late", spec=spec())
    with pytest.raises(Unavailable, match="is stopping"):
        await mesh.servicer.CreateTournament(request, None)
    assert (await mesh.assigned(f"{name}-p0")).train.number == 0
