"""Tests evaluations: they are queued, assigned to pods, and their results returned."""

from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import InvalidArgument, NotFound
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

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
