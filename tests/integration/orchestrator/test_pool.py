import asyncio
import dataclasses
from typing import Any

import pytest

from orchestrator.decisions.pool_size import LONGEST_BACKOFF_SECONDS, MAXIMUM_DEATHS
from orchestrator.decisions.resources import Capacity, Resources
from podrace.errors import InvalidArgument, NotFound, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
CANCELLED = tournament_pb2.TOURNAMENT_STATE_CANCELLED
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED


async def test_the_pool_uses_the_machine_and_every_decision_has_a_reason(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    assert [pod.pod_id for pod in await mesh.pods(name)] == [f"{name}-p0", f"{name}-p1"]
    reasons = [event.message for event in await mesh.events(name) if event.kind == "pod_started"]
    assert reasons == [
        f"{name}-p0: pod 1 of the minimum of 1",
        f"{name}-p1: free cores: 1; a pod needs 1",
    ]


async def test_repeated_cycles_record_no_events(mesh: Any, spec: Any) -> None:
    big = spec()
    big.pod.memory_bytes = 100 << 30
    await mesh.create(spec(maximum_pods=1))
    short = await mesh.create(big)
    await mesh.cycle()
    before = await mesh.events()
    for _ in range(20):
        await mesh.cycle(0.5)
    assert await mesh.events() == before
    assert (await mesh.kinds(short)).count("pool_short") == 1


async def test_why_a_pool_is_short_is_recorded_again_only_for_another_reason(mesh: Any, spec: Any) -> None:
    big = spec()
    big.pod.memory_bytes = 100 << 30
    name = await mesh.create(big)
    total = Resources(2.0, 200 << 30, 0)
    for available_gib in (64, 63, 62):
        mesh.capacity.append(Capacity(total, available_gib << 30))
        await mesh.cycle()
    mesh.capacity.append(Capacity(total, 200 << 30, closed="a pod waits for a node"))
    await mesh.cycle()
    recorded = [event.message for event in await mesh.events(name) if event.kind == "pool_short"]
    assert recorded == ["a pod needs 100.0 GiB of memory, 64.0 GiB is free", "a pod waits for a node"]


async def test_two_tournaments_share_the_machine(mesh: Any, spec: Any) -> None:
    first = await mesh.create(spec())
    await mesh.cycle()
    second = await mesh.create(spec(minimum_pods=0))
    await mesh.cycle()
    draining = [pod.pod_id for pod in await mesh.pods(first) if pod.activity == pb.POD_ACTIVITY_DRAINING]
    assert draining == [f"{first}-p1"]
    answer = await mesh.acquire(f"{first}-p1")
    assert answer.drain == "the fair share among 2 tournaments is 1 pod; chosen because it was idle"
    mesh.launcher.pods.pop(f"{first}-p1")
    await mesh.cycle()
    assert [pod.pod_id for pod in await mesh.pods(second)] == [f"{second}-p0"]


async def test_a_shrinking_machine_shrinks_the_pool(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    mesh.capacity.append(dataclasses.replace(mesh.capacity[-1], total=Resources(1.0, 64 << 30, 0)))
    await mesh.cycle()
    activities = [pod.activity for pod in await mesh.pods(name)]
    assert activities.count(pb.POD_ACTIVITY_DRAINING) == 1


async def test_pods_of_a_cancelled_tournament_are_terminated_and_finally_killed(mesh: Any, spec: Any) -> None:
    mesh.launcher.stubborn = True
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.cancel(name)
    await mesh.cycle()
    await mesh.cycle(19.0)
    assert mesh.launcher.stopped == []
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", False)]
    await mesh.cycle(40.0)
    assert mesh.launcher.stopped[1:] == [(f"{name}-p0", True)]
    await mesh.cycle()
    assert await mesh.pods() == []
    assert (await mesh.kinds(name))[-3:] == ["pod_terminated", "pod_killed", "pod_gone"]


async def test_a_pod_that_learns_of_the_end_from_its_request_and_stops_at_once_has_not_died(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.cancel(name)
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "drain"
    mesh.launcher.pods.clear()
    await mesh.cycle()
    kinds = await mesh.kinds(name)
    assert "pod_gone" in kinds
    assert "pod_died" not in kinds


async def test_dead_pods_are_replaced_with_backoff_and_finally_the_tournament_fails(mesh: Any, spec: Any) -> None:
    mesh.launcher.log_line = "error: no such environment"
    name = await mesh.create(spec(maximum_pods=1))
    waits = []
    for _ in range(5):
        await mesh.cycle()
        waited = 0.0
        while not mesh.launcher.pods and waited < 60:
            waited += 0.25
            await mesh.cycle(0.25)
        waits.append(waited)
        mesh.launcher.pods.clear()
    await mesh.cycle()
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0]
    failed = await mesh.get(name)
    assert failed.state == FAILED
    assert failed.reason == "no such environment (5 pods in a row died before they trained or scored anything)"
    await mesh.resume(name)
    await mesh.cycle(60.0)
    assert (await mesh.get(name)).state == RUNNING
    assert len(await mesh.pods(name)) == 1


async def test_a_pod_that_can_never_be_started_fails_its_tournament_at_once(mesh: Any, spec: Any) -> None:
    mesh.launcher.refusal = InvalidArgument("name: 7 characters too long")
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.cycle()
    assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (FAILED, "name: 7 characters too long")


async def test_a_platform_that_is_unavailable_for_long_fails_no_tournament(mesh: Any, spec: Any) -> None:
    mesh.launcher.refusal = Unavailable("the API is overloaded")
    name = await mesh.create(spec(maximum_pods=1))
    for _ in range(3 * MAXIMUM_DEATHS):
        await mesh.cycle(LONGEST_BACKOFF_SECONDS)
    refused = [event.message for event in await mesh.events(name) if event.kind == "pod_not_started"]
    assert len(refused) > MAXIMUM_DEATHS
    assert refused[0] == f"{name}-p0 was not started: the API is overloaded"
    assert "pod_died" not in await mesh.kinds(name)
    mesh.launcher.refusal = None
    await mesh.cycle(LONGEST_BACKOFF_SECONDS)
    assert len(mesh.launcher.pods) == 1


async def test_a_platform_that_is_unavailable_is_tried_less_and_less_often(mesh: Any, spec: Any) -> None:
    mesh.launcher.refusal = Unavailable("the API is overloaded")
    name = await mesh.create(spec(maximum_pods=1))
    for _ in range(60):
        await mesh.cycle(1.0)
    refused = sum(event.kind == "pod_not_started" for event in await mesh.events(name))
    # After 0.5, 1, 2, 4, 8, 16 and 30 seconds.
    assert 5 <= refused <= 7


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("gpus")])
async def test_a_start_that_fails_unexpectedly_is_recorded_with_its_reason_and_repeated(
    mesh: Any, spec: Any, log_lines: Any, error: Exception
) -> None:
    mesh.launcher.refusal = error
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.cycle()
    (died,) = [event.message for event in await mesh.events(name) if event.kind == "pod_died"]
    assert died == f"{name}-p0 died; its last log line: {error!r}"
    assert "a pod could not be started" in [line["event"] for line in log_lines]
    mesh.launcher.refusal = None
    await mesh.cycle(5.0)
    assert len(mesh.launcher.pods) == 1


async def test_a_pod_of_an_unknown_tournament_is_reported_once_and_left_alone(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    unknown = dataclasses.replace(
        mesh.launcher.pods[f"{name}-p0"], pod_id="other-bbbbbb-p7", tournament_id="other-bbbbbb"
    )
    mesh.launcher.pods[unknown.pod_id] = unknown
    for _ in range(4):
        await mesh.cycle(20.0)
    assert mesh.launcher.stopped == []
    assert [event.kind for event in await mesh.events() if event.pod_id == unknown.pod_id] == ["pod_unknown"]
    assert (await mesh.acquire(unknown.pod_id)).WhichOneof("answer") == "retry_after"
    held = pb.Assignment(assignment_id="other-bbbbbb-a3.2", lease_epoch=2)
    assert (await mesh.renew(held, pod=unknown.pod_id)).directive == pb.DIRECTIVE_CONTINUE
    with pytest.raises(NotFound):
        await mesh.renew(held, pod="other-bbbbbb-p8")


async def test_an_unknown_pod_of_a_known_tournament_is_adopted(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2))
    await mesh.cycle()
    unknown = dataclasses.replace(mesh.launcher.pods.pop(f"{name}-p1"), pod_id=f"{name}-p7")
    mesh.launcher.pods[unknown.pod_id] = unknown
    await mesh.cycle()
    assert "pod_adopted" in await mesh.kinds(name)
    assert await mesh.assigned(unknown.pod_id)
    mesh.launcher.pods.clear()
    await mesh.cycle(20.0)
    # One of them could not start, after another one that was not listed.
    await mesh.cycle(2.0)
    assert {pod.pod_id for pod in await mesh.pods(name)} == {f"{name}-p8", f"{name}-p9"}, "ids are not used twice"


async def test_a_pod_that_is_gone_gets_no_work_so_its_token_is_of_no_use(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.cycle()
    assert (await mesh.acquire(f"{name}-p0")).drain == f"pod {name}-p0 counts as gone"


async def test_a_pod_that_counted_as_gone_and_is_listed_again_is_drained(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    pod = mesh.launcher.pods.pop(f"{name}-p0")
    await mesh.cycle()
    mesh.launcher.pods[pod.pod_id] = pod
    await mesh.cycle()
    assert (await mesh.acquire(pod.pod_id)).drain == "it counted as gone"


# --- the end of a mesh -------------------------------------------------------------------------------------------


async def test_a_stopping_mesh_cancels_drains_waits_and_kills(open_mesh: Any, spec: Any) -> None:
    async with open_mesh(mesh_id="m") as mesh:
        mesh.launcher.stubborn = True
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.cycle()
        work = await mesh.assigned(f"{name}-p0")
        stopping = asyncio.create_task(mesh.reconciler.stop_all_pods(grace_seconds=20.0))
        while not mesh.launcher.stopped:
            assert not stopping.done()
            await asyncio.sleep(0)
        assert (await mesh.renew(work)).directive == pb.DIRECTIVE_DRAIN
        assert mesh.launcher.stopped == [(f"{name}-p0", False)], "no pod is killed within the grace period"
        mesh.clock.now += 20.0
        await stopping
        assert mesh.launcher.stopped[1] == (f"{name}-p0", True)
        assert ((await mesh.get(name)).state, (await mesh.get(name)).reason) == (CANCELLED, "the mesh was stopped")
        assert await mesh.pods() == []
