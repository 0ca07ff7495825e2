"""Pods that come by themselves: what each is given, what happens when there are too many, and when they go."""

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


async def test_a_pod_nobody_knows_is_given_work_and_told_of(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    assert assignment.train.agent_id == f"{name}-a0"
    await mesh.look()
    assert [(pod.pod_id, pod.tournament_id) for pod in await mesh.pods()] == [("host-1", name)]
    assert "pod_joined" in await mesh.kinds(name)
    assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_CONTINUE


async def test_without_a_tournament_it_waits_and_is_woken_by_the_first(mesh: Any, spec: Any) -> None:
    requester = asyncio.create_task(mesh.acquire("host-1", wait=20.0))
    while "host-1" not in mesh.assignments._external_pods.present():
        await asyncio.sleep(0)
    await mesh.create(spec())
    assert (await requester).WhichOneof("answer") == "assignment"


async def test_pods_spread_over_the_tournaments_up_to_their_limits(mesh: Any, spec: Any) -> None:
    first, second = await mesh.create(spec(maximum_pods=1)), await mesh.create(spec(maximum_pods=2))
    given = [(await mesh.assigned(f"host-{number}")).tournament_id for number in range(3)]
    assert sorted(given) == sorted([first, second, second])
    assert await waits(mesh, "host-3")


async def test_what_a_pod_is_asked_for_by_the_specification_does_not_keep_it_away(mesh: Any, spec: Any) -> None:
    big = spec()
    big.pod.memory_bytes, big.pod.cores, big.pod.gpus = 1 << 43, 64.0, 8
    await mesh.create(big)
    await mesh.assigned("host-1")


async def test_a_lower_limit_has_a_pod_give_back_its_agent_and_wait_and_a_higher_one_takes_it_again(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec(maximum_pods=2))
    held = {pod_id: await mesh.assigned(pod_id) for pod_id in ("host-1", "host-2")}
    await limit(mesh, name, 1)
    await mesh.look()
    orders = {pod_id: (await mesh.renew(assignment)).directive for pod_id, assignment in held.items()}
    assert sorted(orders.values()) == [pb.DIRECTIVE_CONTINUE, pb.DIRECTIVE_DRAIN]
    (told,) = (pod_id for pod_id, order in orders.items() if order == pb.DIRECTIVE_DRAIN)
    await mesh.complete(held[told], pb.OUTCOME_DRAINED)
    assert await waits(mesh, told)
    assert len(await mesh.pods(name)) == 1
    await limit(mesh, name, 2)
    assert (await mesh.assigned(told)).train.agent_id == held[told].train.agent_id
    assert "pod_died" not in await mesh.kinds()


async def test_a_tournament_that_ends_gives_its_pods_to_the_next(mesh: Any, spec: Any) -> None:
    first = await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    await mesh.cancel(first)
    assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_DRAIN
    await mesh.complete(assignment, pb.OUTCOME_DRAINED)
    assert await waits(mesh, "host-1")
    second = await mesh.create(spec())
    assert (await mesh.assigned("host-1")).tournament_id == second
    assert "pod_died" not in await mesh.kinds()


async def test_a_single_pod_takes_turns_between_two_tournaments(mesh: Any, spec: Any) -> None:
    names = {await mesh.create(spec()), await mesh.create(spec())}
    seen = []
    for _ in range(4):
        assignment = await mesh.assigned("host-1")
        seen.append(assignment.tournament_id)
        await mesh.complete(assignment)
    assert set(seen[:2]) == set(seen[2:]) == names


async def test_a_repeat_gets_the_same_assignment_even_where_another_tournament_has_fewer_pods(
    mesh: Any, spec: Any
) -> None:
    await mesh.create(spec())
    first = await mesh.assigned("host-1")
    await mesh.create(spec())
    assert (await mesh.assigned("host-1")).assignment_id == first.assignment_id


async def test_a_pod_that_hands_back_and_asks_no_more_has_gone_and_has_not_died(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    await mesh.complete(assignment, pb.OUTCOME_DRAINED)
    await mesh.look(PRESENCE_SECONDS + 1.0)
    assert await mesh.pods() == []
    (gone,) = [event.message for event in await mesh.events(name) if event.kind == "pod_gone"]
    assert gone == "host-1 has gone: it asks for no more work"


async def test_a_pod_that_was_killed_is_missed_and_its_agent_goes_to_another(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    lost = await mesh.assigned("host-1")
    await mesh.look(LEASE_SECONDS + 1.0)
    taken = await mesh.assigned("host-2")
    assert taken.train.agent_id == lost.train.agent_id
    assert taken.lease_epoch == lost.lease_epoch + 1
    await mesh.look(PRESENCE_SECONDS + 1.0)
    assert [pod.pod_id for pod in await mesh.pods(name)] == ["host-2"]


async def test_a_pod_that_was_away_for_a_while_goes_on_with_what_nobody_took(mesh: Any, spec: Any) -> None:
    await mesh.create(spec())
    assignment = await mesh.assigned("host-1")
    await mesh.look(LEASE_SECONDS + RETURN_SECONDS / 2)
    assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_CONTINUE
    await mesh.look(LEASE_SECONDS + RETURN_SECONDS + 1.0)
    assert await mesh.pods() == []
    assert (await mesh.kinds()).count("pod_died") == 1


async def test_a_pod_that_crashes_again_and_again_ends_the_tournament_with_the_reason(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    for life in range(MAXIMUM_DEATHS):
        await mesh.assigned("host-1", f"life-{life}")
    await mesh.acquire("host-1", "one more")
    found = await mesh.get(name)
    assert found.state == tournament_pb2.TOURNAMENT_STATE_FAILED
    assert found.reason.endswith(RESTARTED)


async def test_fewer_pods_than_the_minimum_is_said_with_the_reason(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(minimum_pods=2))
    await mesh.assigned("host-1")
    await mesh.look()
    (short,) = [event.message for event in await mesh.events(name) if event.kind == "pool_short"]
    assert short == "1 of 2 pods: there are 1; start more"


async def test_evaluations_after_the_end_are_done_by_whoever_comes(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=ObjectiveSpec(environment_steps=1)))
    await mesh.cancel(name)
    evaluation = await mesh.evaluate(name)
    assert (await mesh.assigned("host-1")).evaluate.evaluation_id == evaluation


async def test_a_restarted_orchestrator_knows_who_works_for_whom(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(external=True) as mesh:
        name = await mesh.create(spec())
        assignment = await mesh.assigned("host-1")
    async with open_mesh(external=True) as mesh:
        await mesh.look(1.0)
        assert (await mesh.renew(assignment)).directive == pb.DIRECTIVE_CONTINUE
        assert [pod.pod_id for pod in await mesh.pods(name)] == ["host-1"]


async def test_what_a_pod_held_that_went_and_came_back_for_another_tournament_goes_to_others(
    mesh: Any, spec: Any
) -> None:
    first = await mesh.create(spec(maximum_pods=2))
    lost, kept = await mesh.assigned("host-1"), await mesh.assigned("host-2")
    await mesh.look(LEASE_SECONDS)
    await mesh.renew(kept)
    await mesh.look(RETURN_SECONDS + 1.0)
    assert (await mesh.renew(kept)).directive == pb.DIRECTIVE_CONTINUE, "it paid for the other's absence"
    await limit(mesh, first, 1)
    second = await mesh.create(spec(maximum_pods=1))
    assert (await mesh.assigned("host-1", "another life")).tournament_id == second
    await limit(mesh, first, 2)
    assert (await mesh.assigned("host-3")).train.agent_id == lost.train.agent_id
