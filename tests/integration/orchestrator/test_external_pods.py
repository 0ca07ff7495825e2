"""Tests external pods: what is assigned to them, what happens when there are too many, and when they stop."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrator.assignments.external_pods import PRESENCE_SECONDS, RESTARTED, RETURN_SECONDS
from orchestrator.decisions.pool_size import MAXIMUM_DEATHS
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, PoolSpec

LEASE_SECONDS = 10.0


@pytest.fixture
async def mesh(open_mesh: Any) -> AsyncIterator[Any]:
    async with open_mesh(external=True) as opened:
        yield opened


async def limit(mesh: Any, tournament_id: str, maximum_pods: int) -> None:
    pool = PoolSpec(maximum_pods=maximum_pods)
    request = pb.UpdateTournamentRequest(request_id=mesh.request_id(), tournament_id=tournament_id, pool=pool)
    await mesh.call("UpdateTournament", request)


async def waits(mesh: Any, pod_id: str) -> bool:
    return (await mesh.acquire(pod_id)).WhichOneof("answer") == "retry_after"


async def test_an_unknown_external_pod_gets_work_and_is_recorded(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    assert assignment.train.agent_id == f"{name}-a0"
    await mesh.cycle()
    assert [(pod.pod_id, pod.tournament_id) for pod in await mesh.pods()] == [("host-1", name)]
    assert "pod_joined" in await mesh.kinds(name)
    assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_CONTINUE


async def test_an_external_pod_waits_for_the_first_tournament(mesh: Any, spec: Any) -> None:
    request = asyncio.create_task(mesh.acquire("host-1", wait=20.0))
    while "host-1" not in mesh.assignments._external_pods.present():
        await asyncio.sleep(0)
    await mesh.create(spec())
    assert (await request).WhichOneof("answer") == "assignment"


async def test_pods_spread_over_the_tournaments_up_to_their_limits(mesh: Any, spec: Any) -> None:
    first, second = await mesh.create(spec(maximum_pods=1)), await mesh.create(spec(maximum_pods=2))
    assigned = [(await mesh.assigned(f"host-{number}")).tournament_id for number in range(3)]
    assert sorted(assigned) == sorted([first, second, second])
    assert await waits(mesh, "host-3")


async def test_the_pod_settings_of_a_tournament_do_not_apply_to_external_pods(mesh: Any, spec: Any) -> None:
    big = spec()
    big.pod.memory_bytes, big.pod.cores, big.pod.gpus = 1 << 43, 64.0, 8
    await mesh.create(big)
    await mesh.assigned("host-1")


async def test_lowering_the_limit_drains_a_pod_and_raising_it_assigns_its_agent_again(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2))
    held = {pod_id: await mesh.assigned(pod_id) for pod_id in ("host-1", "host-2")}
    await limit(mesh, name, 1)
    await mesh.cycle()
    directives = {pod_id: (await mesh.renew(assignment)).directive for pod_id, assignment in held.items()}
    assert sorted(directives.values()) == [pb.DIRECTIVE_CONTINUE, pb.DIRECTIVE_DRAIN]
    (drained,) = (pod_id for pod_id, directive in directives.items() if directive == pb.DIRECTIVE_DRAIN)
    await mesh.complete(held[drained], pb.OUTCOME_DRAINED)
    assert await waits(mesh, drained)
    assert len(await mesh.pods(name)) == 1
    await limit(mesh, name, 2)
    assert (await mesh.assigned(drained)).train.agent_id == held[drained].train.agent_id
    assert "pod_died" not in await mesh.kinds()


async def test_pods_of_an_ended_tournament_work_for_the_next_one(mesh: Any, spec: Any) -> None:
    first = await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    await mesh.cancel(first)
    assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_DRAIN
    await mesh.complete(assignment, pb.OUTCOME_DRAINED)
    assert await waits(mesh, "host-1")
    second = await mesh.create(spec())
    assert (await mesh.assigned("host-1")).tournament_id == second
    assert "pod_died" not in await mesh.kinds()


async def test_a_single_pod_alternates_between_two_tournaments(mesh: Any, spec: Any) -> None:
    names = {await mesh.create(spec()), await mesh.create(spec())}
    seen = []
    for _ in range(4):
        assignment = await mesh.assigned("host-1")
        seen.append(assignment.tournament_id)
        await mesh.complete(assignment)
    assert set(seen[:2]) == set(seen[2:]) == names


async def test_a_repeated_request_gets_the_same_assignment_even_if_another_tournament_has_fewer_pods(
    mesh: Any, spec: Any
) -> None:
    await mesh.create(spec())
    first = await mesh.assigned("host-1")
    await mesh.create(spec())
    assert (await mesh.assigned("host-1")).assignment_id == first.assignment_id


async def test_a_pod_that_drains_and_stops_requesting_is_gone_and_not_dead(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    await mesh.complete(assignment, pb.OUTCOME_DRAINED)
    await mesh.cycle(PRESENCE_SECONDS + 1.0)
    assert await mesh.pods() == []
    (gone,) = [event.message for event in await mesh.events(name) if event.kind == "pod_gone"]
    assert gone == "host-1 has stopped: it no longer requests work"


async def test_the_agent_of_a_killed_external_pod_is_assigned_to_another(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    lost = await mesh.assigned("host-1")
    await mesh.cycle(LEASE_SECONDS + 1.0)
    taken = await mesh.assigned("host-2")
    assert taken.train.agent_id == lost.train.agent_id
    assert taken.lease_epoch == lost.lease_epoch + 1
    await mesh.cycle(PRESENCE_SECONDS + 1.0)
    assert [pod.pod_id for pod in await mesh.pods(name)] == ["host-2"]


async def test_a_pod_that_returns_in_time_resumes_its_agent(mesh: Any, spec: Any) -> None:
    await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    await mesh.cycle(LEASE_SECONDS + RETURN_SECONDS / 2)
    assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_CONTINUE
    await mesh.cycle(LEASE_SECONDS + RETURN_SECONDS + 1.0)
    assert await mesh.pods() == []
    assert (await mesh.kinds()).count("pod_died") == 1


async def test_an_external_pod_that_keeps_crashing_fails_the_tournament(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    for run in range(MAXIMUM_DEATHS):
        await mesh.assigned("host-1", f"run-{run}")
    await mesh.acquire("host-1", "last run")
    found = await mesh.get(name)
    assert found.state == tournament_pb2.TOURNAMENT_STATE_FAILED
    assert found.reason.startswith(f"{RESTARTED} ({MAXIMUM_DEATHS} pods in a row")


async def test_fewer_external_pods_than_the_minimum_are_reported(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=2))
    await mesh.assigned("host-1")
    await mesh.cycle()
    (short,) = [event.message for event in await mesh.events(name) if event.kind == "pool_short"]
    assert short == "1 of 2 pods: 1 external pods are connected; start more"


async def test_evaluations_after_the_end_are_assigned_to_any_external_pod(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=ObjectiveSpec(environment_steps=1)))
    await mesh.cancel(name)
    evaluation = await mesh.evaluate(name)
    assert (await mesh.assigned("host-1")).evaluate.evaluation_id == evaluation


async def test_external_pods_and_their_tournaments_survive_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(external=True) as mesh:
        name = await mesh.create(spec())
        assignment = await mesh.assigned("host-1")
    async with open_mesh(external=True) as mesh:
        await mesh.cycle(1.0)
        assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_CONTINUE
        assert [pod.pod_id for pod in await mesh.pods(name)] == ["host-1"]


async def test_work_left_by_a_pod_that_returned_to_another_tournament_is_assigned_to_others(
    mesh: Any, spec: Any
) -> None:
    first = await mesh.create(spec(maximum_pods=2))
    lost, kept = await mesh.assigned("host-1"), await mesh.assigned("host-2")
    await mesh.cycle(LEASE_SECONDS)
    await mesh.renew(kept)
    await mesh.cycle(RETURN_SECONDS + 1.0)
    assert (await mesh.renew(kept)).directive == pb.DIRECTIVE_CONTINUE, "it was drained because of the absent pod"
    await limit(mesh, first, 1)
    second = await mesh.create(spec(maximum_pods=1))
    assert (await mesh.assigned("host-1", "another run")).tournament_id == second
    await limit(mesh, first, 2)
    assert (await mesh.assigned("host-3")).train.agent_id == lost.train.agent_id
