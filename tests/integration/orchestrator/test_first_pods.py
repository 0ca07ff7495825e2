"""A tournament whose incumbent's pod may grow begins with a large pod for the founder."""

from typing import Any

from orchestrator.decisions.resources import Capacity, Resources
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, PodSpec

ENDLESS = ObjectiveSpec(environment_steps=1_000_000_000)
GROWING = PodSpec(cores=1.0, maximum_cores=2.0, improving_share=1.0)


def sizes(mesh: Any) -> dict[str, float]:
    return {pod.pod_id: pod.cores for pod in mesh.runtime.cache.pods.values()}


async def test_the_founder_begins_with_the_cores_of_an_incumbent_that_improves(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(pod=GROWING, objective=ENDLESS))
    await mesh.cycle()
    await mesh.cycle(1.0)
    assert sizes(mesh) == {f"{name}-p0": 2.0}
    assert mesh.launcher.pods[f"{name}-p0"].reserved.cores == 2.0
    assert (await mesh.assigned(f"{name}-p0")).train.agent_id == f"{name}-a0"


async def test_smaller_pods_leave_the_founder_to_the_larger_one(mesh: Any, spec: Any) -> None:
    mesh.capacity.append(Capacity(Resources(4.0, 64 << 30, 0), 64 << 30))
    name = await mesh.create(spec(pod=PodSpec(cores=1.0, maximum_cores=4.0), objective=ENDLESS))
    await mesh.cycle()
    assert sizes(mesh) == {f"{name}-p0": 3.0, f"{name}-p1": 1.0}
    early = await mesh.call("AcquireAssignment", pb.AcquireAssignmentRequest(pod_id=f"{name}-p1", incarnation="run"))
    assert early.WhichOneof("answer") == "retry_after"
    assert (await mesh.assigned(f"{name}-p0")).train.agent_id == f"{name}-a0"
    assert (await mesh.assigned(f"{name}-p1")).train.agent_id == f"{name}-a1"


async def test_a_pod_that_replaces_the_first_one_has_the_usual_size(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(pod=GROWING, objective=ENDLESS))
    await mesh.cycle()
    mesh.launcher.pods.clear()
    for _ in range(5):
        await mesh.cycle(1.0)
    assert sizes(mesh) == {f"{name}-p1": 1.0, f"{name}-p2": 1.0}
    assert (await mesh.assigned(f"{name}-p1")).train.agent_id == f"{name}-a0"
