"""The last round of a synchronous tournament with a budget of steps ends, whatever happens to its pods."""

from typing import Any

import pytest

from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_COMPLETED as COMPLETED
from podrace.tournament.v1.tournament_pb2 import AssignmentSpec, ObjectiveSpec


async def lose_pod(mesh: Any, name: str, work: pb.Assignment) -> None:
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.cycle()


async def pause_and_resume(mesh: Any, name: str, work: pb.Assignment) -> None:
    await mesh.pause(name)
    progress = pb.Progress(environment_steps=50, update_age_seconds=1.0)
    await mesh.complete(work, pb.OUTCOME_DRAINED, progress=progress)
    mesh.launcher.pods.clear()
    await mesh.cycle()
    await mesh.resume(name)


@pytest.mark.parametrize("interrupt", [lose_pod, pause_and_resume])
async def test_an_agent_that_lost_its_pod_in_its_last_evaluation_is_resumed(
    mesh: Any, spec: Any, interrupt: Any
) -> None:
    objective, assignment = ObjectiveSpec(environment_steps=100), AssignmentSpec(environment_steps=1000)
    name = await mesh.create(spec(maximum_pods=2, synchronous=True, objective=objective, assignment=assignment))
    await mesh.cycle()
    first, second = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    assert first.maximum_environment_steps == 50
    await mesh.complete(second, progress=pb.Progress(environment_steps=50))
    await mesh.renew(first, environment_steps=50, activity=pb.POD_ACTIVITY_EVALUATING)
    await interrupt(mesh, name, first)
    await mesh.cycle(15.0)
    again = await mesh.assigned(next(iter(mesh.launcher.pods)))
    assert (again.train.agent_id, again.maximum_environment_steps) == (first.train.agent_id, 50)
    await mesh.complete(again, progress=pb.Progress(environment_steps=50))
    await mesh.cycle()
    mesh.launcher.pods.clear()
    await mesh.cycle()
    assert (await mesh.get(name)).state == COMPLETED
