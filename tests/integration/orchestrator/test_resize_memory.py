"""A pod of another size starts only if it has memory next to the pod that it replaces."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.decisions.pool_size import SETTLING_SECONDS
from orchestrator.decisions.resources import Capacity, Resources
from podrace.leaderboard.v1.leaderboard_pb2 import Incumbent
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, ObjectiveSpec, PodSpec

GIB = 1 << 30


async def improve(mesh: Any, spec: Callable[..., Any], total_gib: int, available_gib: int, age: float) -> Any:
    """Lets the incumbent improve in one of four pods that have all cores; returns the pods by id."""
    mesh.capacity.append(Capacity(Resources(4.0, total_gib * GIB, 0), 64 * GIB))
    pod = PodSpec(cores=1.0, memory_bytes=2 * GIB, maximum_cores=4.0, improving_share=0.7)
    endless, founder = ObjectiveSpec(environment_steps=1_000_000_000), EvolutionSpec(founder_share=0.0)
    name = await mesh.create(spec(pod=pod, objective=endless, evolution=founder, maximum_pods=4))
    await mesh.cycle()
    mesh.runtime.running_time.add([name], 1000.0)
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(4)]
    for _ in range(6):
        mesh.clock.now += age / 6
        for work in works:
            await mesh.renew(work)
    mesh.capacity.append(Capacity(Resources(4.0, total_gib * GIB, 0), available_gib * GIB))
    mesh.leaderboard.incumbent = Incumbent(agent_id=f"{name}-a0", improving=True, scores=10, reason="set by the test")
    for _ in range(2):
        await mesh.cycle(0.1)
    return {pod.pod_id.removeprefix(f"{name}-"): pod for pod in mesh.runtime.cache.pods.values()}


@pytest.mark.parametrize(("total_gib", "staying"), [(8, {"p0"}), (10, {"p0", "p3"})])
async def test_the_old_pod_the_new_one_and_those_that_stay_fit_into_the_memory(
    mesh: Any, spec: Callable[..., Any], total_gib: int, staying: set[str]
) -> None:
    found = await improve(mesh, spec, total_gib, total_gib, SETTLING_SECONDS)
    assert found["p4"].cores == 3.0
    assert {name for name, pod in found.items() if not pod.drain_reason} == {*staying, "p4"}
    assert sum(pod.memory_bytes for pod in found.values() if not pod.drain_reason) <= total_gib * GIB


@pytest.mark.parametrize(("age", "grows"), [(SETTLING_SECONDS, True), (SETTLING_SECONDS / 2, False)])
async def test_memory_that_young_pods_do_not_use_yet_is_not_available(
    mesh: Any, spec: Callable[..., Any], age: float, *, grows: bool
) -> None:
    found = await improve(mesh, spec, 64, 8, age)
    assert ("p4" in found) is grows
