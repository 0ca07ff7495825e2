"""Tests that the cost of a call does not depend on the number of pods, measured in instructions of the database."""

import asyncio
from typing import Any

from podrace.orchestrator.v1 import orchestrator_pb2 as pb


class Effort:
    """Counts the instructions of SQLite's virtual machine."""

    def __init__(self, mesh: Any) -> None:
        self.instructions = 0
        mesh.state._database._engine.connection.set_progress_handler(self._count, 1)

    def _count(self) -> int:
        self.instructions += 1
        return 0


async def crowd(mesh: Any, spec: Any, pods: int) -> tuple[str, list[pb.Assignment]]:
    name = await mesh.create(spec(minimum_pods=pods, maximum_pods=pods))
    await mesh.cycle()
    return name, await asyncio.gather(*(mesh.assigned(f"{name}-p{number}") for number in range(pods)))


async def effort_of_an_assignment(mesh: Any, spec: Any, pods: int) -> int:
    name, works = await crowd(mesh, spec, pods)
    await mesh.complete(works[0])
    effort = Effort(mesh)
    await mesh.complete(await mesh.assigned(f"{name}-p0"))
    return effort.instructions


async def test_the_database_cost_of_an_assignment_does_not_depend_on_the_pool_size(mesh: Any, spec: Any) -> None:
    small, large = [await effort_of_an_assignment(mesh, spec, pods) for pods in (2, 60)]
    assert 100 < large < 1.1 * small


async def test_a_renewal_does_not_query_the_database(mesh: Any, spec: Any) -> None:
    name, works = await crowd(mesh, spec, 2)
    await mesh.renew(works[0], score=1.0)
    effort = Effort(mesh)
    for _ in range(3):
        assert (await mesh.renew(works[0], score=2.0, environment_steps=7)).directive == pb.DIRECTIVE_CONTINUE
    assert effort.instructions == 0
    await mesh.cancel(name)
    assert (await mesh.renew(works[0])).directive == pb.DIRECTIVE_DRAIN


async def test_a_cycle_without_changes_does_not_query_the_database(mesh: Any, spec: Any) -> None:
    await crowd(mesh, spec, 20)
    await mesh.cycle(2.0)
    effort = Effort(mesh)
    await mesh.cycle(0.5)
    assert effort.instructions == 0


async def test_all_pods_are_started_in_one_cycle_with_ordered_names(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=50, maximum_pods=50))
    await mesh.reconciler.cycle()
    assert [pod.pod_id for pod in await mesh.pods(name)] == [f"{name}-p{number}" for number in range(50)]


async def test_pods_that_wait_for_a_round_are_not_woken_by_each_completion(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=4, maximum_pods=4, synchronous=True))
    await mesh.cycle()
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(4)]
    await mesh.complete(works[0])
    waiting = asyncio.create_task(mesh.acquire(f"{name}-p0", wait=30.0))
    while f"{name}-p0" not in mesh.runtime.connected_pods:
        await asyncio.sleep(0)
    await mesh.complete(works[1])
    change = mesh.runtime.changes.next_change()
    await mesh.complete(works[2])
    assert not change.is_set()
    await mesh.complete(works[3])
    await mesh.cycle()
    assert (await waiting).assignment.train.number == 4
