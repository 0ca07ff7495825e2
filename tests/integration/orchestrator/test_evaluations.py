"""Tests evaluations: they are queued, assigned to pods, and their results returned."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.state import records
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import Aborted, InvalidArgument, NamedResource, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Incumbent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, PodSpec

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING


async def test_an_evaluation_is_assigned_before_agents_and_its_result_returned(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    assert not (await mesh.evaluation(evaluation_id)).done
    work = await mesh.assigned(f"{name}-p0")
    assert work.evaluate.evaluation_id == evaluation_id
    assert work.evaluate.episodes == 4
    await mesh.renew(work, environment_steps=1000)
    await mesh.complete(work, evaluation=Evaluation(mean_return=3.5))
    answer = await mesh.evaluation(evaluation_id)
    assert (answer.done, answer.evaluation.mean_return, answer.error) == (True, 3.5, "")
    assert (await mesh.get(name)).environment_steps == 0


async def test_a_failed_evaluation_has_its_error(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    await mesh.fail(name)
    answer = await mesh.evaluation(evaluation_id)
    assert (answer.done, answer.error) == (True, "loss is NaN")
    assert (await mesh.get(name)).state == RUNNING


async def wait(mesh: Any, evaluation_id: str, seconds: int) -> pb.WaitEvaluationResponse:
    request = pb.WaitEvaluationRequest(evaluation_id=evaluation_id)
    request.wait_duration.FromSeconds(seconds)
    answer: pb.WaitEvaluationResponse = await mesh.call("WaitEvaluation", request, seconds + 10.0)
    return answer


async def cancel(mesh: Any, evaluation_id: str, request_id: str = "c") -> pb.CancelEvaluationResponse:
    request = pb.CancelEvaluationRequest(request_id=request_id, evaluation_id=evaluation_id, reason="a mistake")
    answer: pb.CancelEvaluationResponse = await mesh.call("CancelEvaluation", request)
    return answer


async def test_a_caller_waits_until_an_evaluation_has_finished(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    assert not (await wait(mesh, evaluation_id, 0)).done
    waiting = asyncio.create_task(wait(mesh, evaluation_id, 30))
    work = await mesh.assigned(f"{name}-p0")
    assert not waiting.done()
    await mesh.complete(work, evaluation=Evaluation(mean_return=3.5))
    answer = await asyncio.wait_for(waiting, 10)
    assert (answer.done, answer.evaluation.mean_return, answer.error) == (True, 3.5, "")


async def test_a_cancelled_evaluation_has_ended_and_its_pod_stops_playing_it(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    work = await mesh.assigned(f"{name}-p0")
    waiting = asyncio.create_task(wait(mesh, evaluation_id, 30))
    assert (await cancel(mesh, evaluation_id)).error == "cancelled: a mistake"
    assert (await waiting).error == "cancelled: a mistake"
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_CANCEL
    assert (await mesh.assigned(f"{name}-p0")).WhichOneof("work") == "train"


async def test_cancelling_twice_or_too_late_changes_nothing(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    await mesh.complete(await mesh.assigned(f"{name}-p0"), evaluation=Evaluation(mean_return=3.5))
    for request_id in ("c", "c", "d"):
        answer = await cancel(mesh, evaluation_id, request_id)
        assert (answer.evaluation.mean_return, answer.error) == (3.5, "")
    assert (await mesh.evaluation(evaluation_id)).evaluation.mean_return == 3.5


async def test_an_unknown_evaluation_is_not_found_by_any_method(mesh: Any, name: str) -> None:
    for call in (wait(mesh, f"{name}-e7", 0), cancel(mesh, f"{name}-e7")):
        with pytest.raises(NotFound, match="there is no such evaluation") as caught:
            await call
        assert caught.value.resource == NamedResource("evaluation", f"{name}-e7")


async def test_an_update_based_on_an_outdated_version_is_aborted(mesh: Any, name: str) -> None:
    read = await mesh.get(name)
    request = pb.UpdateTournamentRequest(request_id="u", tournament_id=name, etag=read.etag)
    request.pool.maximum_pods = 3
    changed = (await mesh.call("UpdateTournament", request)).tournament
    assert changed.spec.pool.maximum_pods == 3
    assert changed.etag != read.etag
    request.request_id, request.pool.maximum_pods = "v", 4
    with pytest.raises(Aborted, match="was changed since it was read"):
        await mesh.call("UpdateTournament", request)
    assert (await mesh.get(name)).spec.pool.maximum_pods == 3


async def test_after_the_end_one_pod_is_started_for_evaluations_and_drained_afterwards(mesh: Any, name: str) -> None:
    await mesh.cancel(name)
    mesh.launcher.pods.clear()
    await mesh.cycle()
    assert await mesh.pods() == []
    evaluation_id = await mesh.evaluate(name)
    await mesh.cycle()
    (pod,) = await mesh.pods()
    work = await mesh.assigned(pod.pod_id)
    assert (await mesh.renew(work)).directive == pb.DIRECTIVE_CONTINUE
    await mesh.complete(work, evaluation=Evaluation(mean_return=1.0))
    assert (await mesh.acquire(pod.pod_id)).WhichOneof("answer") == "drain"
    assert (await mesh.evaluation(evaluation_id)).done


async def test_an_evaluation_that_kills_its_pods_fails(mesh: Any, name: str) -> None:
    evaluation_id = await mesh.evaluate(name)
    for _ in range(3):
        pod = next(iter(mesh.launcher.pods))
        assert (await mesh.assigned(pod)).evaluate.evaluation_id == evaluation_id
        mesh.launcher.pods.pop(pod)
        await mesh.cycle()
        await mesh.cycle(10.0)
    work = await mesh.assigned(next(iter(mesh.launcher.pods)))
    assert work.WhichOneof("work") == "train"
    assert (await mesh.evaluation(evaluation_id)).error == "cancelled after 3 pods were lost while they ran it"


async def test_an_evaluation_needs_a_checkpoint_and_a_tournament(mesh: Any, name: str) -> None:
    with pytest.raises(InvalidArgument, match="manifest_digest"):
        await mesh.call("CreateEvaluation", pb.CreateEvaluationRequest(request_id="e", tournament_id=name))
    with pytest.raises(NotFound):
        await mesh.evaluate("unknown")
    with pytest.raises(NotFound):
        await mesh.evaluation("unknown-e0")


async def test_while_the_grown_pod_evaluates_the_incumbent_continues_in_another_pod(
    mesh: Any, spec: Callable[..., Any]
) -> None:
    name = await mesh.create(spec(pod=PodSpec(cores=1.0, maximum_cores=2.0), evolution=EvolutionSpec(founder_share=0)))
    await mesh.cycle()
    grown, small = f"{name}-p0", f"{name}-p1"
    await mesh.state.transact(records.save, replace(mesh.runtime.cache.pods[grown], cores=2.0))
    first, second = await mesh.assigned(grown), await mesh.assigned(small)
    mesh.leaderboard.incumbent = Incumbent(agent_id=f"{name}-a0", scores=6, reason="set by the test")
    mesh.leaderboard.continued_trial = 0
    await mesh.cycle()
    await mesh.evaluate(name)
    await mesh.complete(first)
    evaluation = await mesh.assigned(grown)
    assert evaluation.HasField("evaluate")
    await mesh.complete(second)
    following = await mesh.assigned(small)
    assert following.train.agent_id == f"{name}-a2"
    assert mesh.runtime.cache.works[f"{name}-a2"].trial == 0
    await mesh.complete(evaluation, evaluation=Evaluation(mean_return=3.5))
    await mesh.complete(following)
    assert (await mesh.acquire(small)).WhichOneof("answer") == "retry_after", "the grown pod is free again"
    assert (await mesh.assigned(grown)).train.agent_id == f"{name}-a3"
