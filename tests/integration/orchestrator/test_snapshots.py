"""Tests the running time that pods receive, champion snapshots, and the list of evaluations."""

import asyncio
from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import InvalidArgument, NotFound, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec, ObjectiveSpec


def every(seconds: float) -> EvaluationSpec:
    evaluation = EvaluationSpec()
    evaluation.snapshot_period.FromMilliseconds(round(1000 * seconds))
    return evaluation


async def pass_time(mesh: Any, seconds: float) -> None:
    """Advances the clock, runs a cycle, and waits until the snapshots that it started are taken."""
    await mesh.cycle(seconds)
    await asyncio.gather(*mesh.reconciler._snapshots._taking.values())


def taken(mesh: Any) -> list[tuple[int, float]]:
    return [(one.number, one.running_duration.ToMilliseconds() / 1000) for one in mesh.leaderboard.snapshots]


# --- running time ------------------------------------------------------------------------------------------------


async def test_a_pod_gets_the_running_time_of_its_tournament_without_pauses(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    await mesh.cycle(40.0)
    work = await mesh.assigned(f"{name}-p0")
    assert work.running_duration.seconds == 40
    await mesh.cancel(name)
    await mesh.cycle()
    await mesh.cycle(1000.0)
    await mesh.resume(name)
    await mesh.cycle()
    await mesh.cycle(2.0)
    assert (await mesh.get(name)).running_duration.seconds == 42
    again = await mesh.assigned(f"{name}-p2")
    assert again.running_duration.seconds == 42


async def test_the_time_since_the_last_cycle_counts_once(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    mesh.clock.now += 1.5
    assert (await mesh.renew(work)).running_duration.ToMilliseconds() == 1500
    await mesh.cycle()
    assert (await mesh.renew(work)).running_duration.ToMilliseconds() == 1500
    await mesh.cycle(0.25)
    mesh.clock.now += 0.25
    assert (await mesh.renew(work)).running_duration.ToMilliseconds() == 2000


async def test_the_running_time_does_not_grow_after_the_end(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(objective=ObjectiveSpec(environment_steps=1)))
    await mesh.cycle(1.0)
    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(work, environment_steps=5)
    await mesh.cycle(1.0)
    ended = (await mesh.get(name)).running_duration
    mesh.clock.now += 5.0
    assert (await mesh.renew(work)).running_duration == ended


# --- champions ---------------------------------------------------------------------------------------------------


async def test_a_champion_snapshot_is_taken_at_each_multiple_of_the_period(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(evaluation=every(10)))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(work, environment_steps=700)
    for _ in range(7):
        await pass_time(mesh, 4.0)
    assert taken(mesh) == [(1, 12.0), (2, 20.0)]
    assert [one.environment_steps for one in mesh.leaderboard.snapshots] == [700, 700]
    assert {one.tournament_id for one in mesh.leaderboard.snapshots} == {name}


async def test_without_a_period_no_snapshot_is_taken(mesh: Any, spec: Any) -> None:
    await mesh.create(spec())
    await pass_time(mesh, 0.0)
    await pass_time(mesh, 100.0)
    assert taken(mesh) == []


async def test_pauses_do_not_count_for_the_snapshot_period(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(evaluation=every(10)))
    await pass_time(mesh, 0.0)
    await pass_time(mesh, 6.0)
    await mesh.cancel(name)
    await pass_time(mesh, 0.0)
    await pass_time(mesh, 1000.0)
    await mesh.resume(name)
    await pass_time(mesh, 0.0)
    await pass_time(mesh, 3.0)
    assert taken(mesh) == []
    await pass_time(mesh, 1.5)
    assert taken(mesh) == [(1, 10.5)]


async def test_a_snapshot_that_is_due_at_the_end_is_taken(mesh: Any, spec: Any) -> None:
    objective = ObjectiveSpec()
    objective.wall_clock_duration.FromSeconds(20)
    await mesh.create(spec(evaluation=every(10), objective=objective))
    for _ in range(5):
        await pass_time(mesh, 10.0)
    assert taken(mesh) == [(1, 10.0), (2, 20.0)]


async def test_a_snapshot_is_retried_while_the_leaderboard_is_unavailable(mesh: Any, spec: Any) -> None:
    await mesh.create(spec(evaluation=every(10)))
    mesh.leaderboard.snapshot_refusal = Unavailable("unreachable")
    await pass_time(mesh, 0.0)
    cycling = asyncio.create_task(pass_time(mesh, 10.0))
    await asyncio.sleep(0.1)
    mesh.leaderboard.snapshot_refusal = None
    await cycling
    await pass_time(mesh, 1.0)
    assert [number for number, _ in taken(mesh)] == [1]


async def test_a_snapshot_that_cannot_be_taken_is_not_retried_in_every_cycle(mesh: Any, spec: Any) -> None:
    await mesh.create(spec(evaluation=every(10)))
    mesh.leaderboard.snapshot_refusal = NotFound("the best one's manifest is not in the store")
    await pass_time(mesh, 0.0)
    await pass_time(mesh, 10.0)
    mesh.leaderboard.snapshot_refusal = None
    await pass_time(mesh, 1.0)
    assert taken(mesh) == []
    await pass_time(mesh, 9.0)
    assert taken(mesh) == [(2, 20.0)]


async def test_snapshot_numbers_continue_after_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(mesh_id="m") as mesh:
        await mesh.create(spec(evaluation=every(10)))
        await pass_time(mesh, 0.0)
        await pass_time(mesh, 11.0)
        assert taken(mesh) == [(1, 11.0)]
    async with open_mesh(mesh_id="m") as mesh:
        await pass_time(mesh, 0.0)
        await pass_time(mesh, 0.0)
        # The response to the previous run may have been lost; the leaderboard keeps the first snapshot of a number.
        assert taken(mesh) == [(1, 11.0)]
        await pass_time(mesh, 9.0)
        assert taken(mesh) == [(1, 11.0), (2, 20.0)]


# --- evaluations -------------------------------------------------------------------------------------------------


async def evaluations(mesh: Any, name: str, size: int = 0, token: str = "") -> list[pb.EvaluationEntry]:
    request = pb.ListEvaluationsRequest(tournament_id=name, page_size=size, page_token=token)
    answer = await mesh.call("ListEvaluations", request)
    more = await evaluations(mesh, name, size, answer.next_page_token) if answer.next_page_token else []
    return [*answer.evaluations, *more]


async def test_evaluations_are_listed_with_their_results_but_without_traces(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    done, failed, waiting = [await mesh.evaluate(name) for _ in range(3)]
    work = await mesh.assigned(f"{name}-p0")
    result = Evaluation(mean_return=3.5, episodes=4)
    result.traces["account_value"].values.extend([1.0, 2.0])
    await mesh.complete(work, evaluation=result)
    await mesh.complete(await mesh.assigned(f"{name}-p0"), pb.OUTCOME_AGENT_FAILED, message="no such object")
    first, second, third = await evaluations(mesh, name)
    assert [one.work.evaluation_id for one in (first, second, third)] == [done, failed, waiting]
    assert (first.done, first.evaluation.mean_return, first.error) == (True, 3.5, "")
    assert not first.evaluation.traces
    assert (first.work.checkpoint.manifest_digest, first.work.episodes) == ("0123456789abcdef" * 4, 4)
    assert (second.done, second.HasField("evaluation"), second.error) == (True, False, "no such object")
    assert (third.done, third.HasField("evaluation")) == (False, False)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
async def test_all_pages_of_evaluations_add_up_to_the_whole_list(mesh: Any, spec: Any, size: int) -> None:
    name = await mesh.create(spec())
    other = await mesh.create(spec())
    ids = [await mesh.evaluate(name) for _ in range(3)]
    await mesh.evaluate(other)
    assert [one.work.evaluation_id for one in await evaluations(mesh, name, size)] == ids


async def test_an_invalid_page_token_is_rejected(mesh: Any, spec: Any) -> None:
    with pytest.raises(InvalidArgument, match="page_token 'x' does not belong to this list"):
        await evaluations(mesh, await mesh.create(spec()), token="x")
