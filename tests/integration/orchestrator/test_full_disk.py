"""While the orchestrator cannot write its database, tournaments are paused, and no pod is lost."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from full_disk import FULL, FullDisk, filled, small_disk

from podrace.errors import PodraceError, ResourceExhausted
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1 import tournament_pb2


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


async def cycles(mesh: Any, seconds: float) -> None:
    """Runs cycles as the loop does: one that fails is followed by the next one."""
    for _ in range(int(seconds)):
        with contextlib.suppress(ResourceExhausted):
            await mesh.cycle(1.0)


async def fill(mesh: Any, disk: FullDisk) -> None:
    """Makes the disk full; the orchestrator notices it when it next saves the progress."""
    disk.full = True
    await cycles(mesh, 3.0)


async def kinds(mesh: Any, name: str, *wanted: str) -> list[str]:
    return [kind for kind in await mesh.kinds(name) if kind in wanted or kind.startswith("storage_")]


async def test_a_running_tournament_is_paused_until_there_is_space(mesh: Any, spec: Any, disk: FullDisk) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    await fill(mesh, disk)
    paused = await mesh.get(name)
    assert paused.pause_reason.startswith("waiting for storage: database ")
    assert FULL in paused.pause_reason
    assert _metric("podrace_orchestrator_tournaments_paused") == 1
    assert _metric("podrace_orchestrator_database_unwritable") == 1
    assert await kinds(mesh, name) == [], "nothing can be recorded yet"
    for _ in range(12):
        await mesh.renew(work, activity=pb.POD_ACTIVITY_TRAINING)
        await cycles(mesh, 5.0)
    assert (await mesh.get(name)).running_duration == paused.running_duration, "its clock stands still"

    disk.full = False
    await mesh.cycle(1.0)
    resumed = await mesh.get(name)
    assert (resumed.pause_reason, resumed.state) == ("", paused.state)
    assert _metric("podrace_orchestrator_database_unwritable") == 0
    assert await kinds(mesh, name, "pod_died", "pod_killed") == ["storage_fault", "storage_recovered"]
    await mesh.cycle(2.0)
    assert (await mesh.get(name)).running_duration.ToSeconds() == paused.running_duration.ToSeconds() + 2
    await mesh.complete(work, progress=pb.Progress(environment_steps=7))
    assert mesh.launcher.stopped == []


async def test_leases_are_renewed_on_a_full_disk_and_what_follows_is_recorded_later(
    mesh: Any, name: str, disk: FullDisk
) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await fill(mesh, disk)
    for _ in range(2):
        answer = await mesh.renew(work, score=1.0, evaluator_fault="it raised")
        assert answer.directive == pb.DIRECTIVE_CONTINUE
    disk.full = False
    await mesh.cycle(1.0)
    for _ in range(2):
        await mesh.renew(work, score=1.0, evaluator_fault="it raised")
    assert mesh.runtime.cache.pods[f"{name}-p0"].useful
    assert (await mesh.kinds(name)).count("evaluator_replaced") == 1


async def test_a_report_of_a_stuck_role_counts_as_known_only_when_it_is_recorded(
    mesh: Any, name: str, disk: FullDisk
) -> None:
    work = await mesh.assigned(f"{name}-p0")
    stuck = pb.StuckRole(number=1, progress=pb.RoleProgress(role="worker-0"), reason="it does not answer")
    report = pb.RenewAssignmentRequest(assignment_id=work.assignment_id, lease_epoch=1, stuck_roles=[stuck])
    disk.full = True
    with pytest.raises(ResourceExhausted):
        await mesh.call("RenewAssignment", report)
    disk.full = False
    await asyncio.gather(*(mesh.call("RenewAssignment", report) for _ in range(4)))
    assert (await mesh.kinds(name)).count("role_stuck") == 1


async def test_a_hung_pod_is_killed_on_a_full_disk_and_replaced_when_there_is_space(
    mesh: Any, spec: Any, disk: FullDisk
) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    lost = await mesh.assigned(f"{name}-p0")
    await fill(mesh, disk)
    await cycles(mesh, 20.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]
    await cycles(mesh, 20.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)], "it is not running any more"

    disk.full = False
    await cycles(mesh, 3.0)
    assert await kinds(mesh, name, "pod_killed", "pod_died") == [
        *("pod_killed", "pod_died"),
        *("storage_fault", "storage_recovered"),
    ]
    found = await mesh.assigned(f"{name}-p1")
    assert found.train.agent_id == lost.train.agent_id


async def test_a_pod_that_does_not_stop_when_asked_is_killed_on_a_full_disk(
    mesh: Any, spec: Any, disk: FullDisk
) -> None:
    mesh.launcher.stubborn = True
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.cancel(name)
    await mesh.cycle(1.0)
    await fill(mesh, disk)
    for _ in range(62):
        await mesh.renew(work)
        await cycles(mesh, 1.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", False), (f"{name}-p0", True)]


async def test_an_orchestrator_that_starts_on_a_full_disk_answers_and_kills_no_pod(
    open_mesh: Any, spec: Any, disk: FullDisk
) -> None:
    async with open_mesh() as first:
        name = await first.create(spec(maximum_pods=1))
        await first.cycle()
        work = await first.assigned(f"{name}-p0")
        disk.full = True
    async with open_mesh(launcher=first.launcher) as second:
        for _ in range(30):
            await second.renew(work, activity=pb.POD_ACTIVITY_TRAINING)
            await cycles(second, 1.0)
        assert (await second.get(name)).pause_reason
        disk.full = False
        await cycles(second, 1.0)
        await second.complete(work)
        assert second.launcher.stopped == []


async def test_a_mesh_that_stops_on_a_full_disk_does_not_wait(mesh: Any, name: str, disk: FullDisk) -> None:
    await mesh.assigned(f"{name}-p0")
    disk.full = True
    await mesh.reconciler.stop_all_pods(grace_seconds=20.0)
    await mesh.reconciler.close()


async def test_calls_that_only_read_are_answered_while_others_fail(mesh: Any, name: str, disk: FullDisk) -> None:
    disk.full = True

    async def refused() -> str:
        with pytest.raises(ResourceExhausted) as refusal:
            await mesh.cancel(name)
        return refusal.value.message

    answers = await asyncio.gather(*(call for _ in range(20) for call in (mesh.events(name), refused())))
    assert all(answers)


async def test_a_damaged_database_pauses_all_tournaments_until_the_service_starts_again(
    mesh: Any, name: str, disk: FullDisk
) -> None:
    await mesh.cycle()
    disk.error = "SQLITE_CORRUPT"
    await fill(mesh, disk)
    disk.full = False
    await cycles(mesh, 3.0)
    paused = await mesh.get(name)
    assert paused.state == tournament_pb2.TOURNAMENT_STATE_RUNNING
    assert "is damaged" in paused.pause_reason


async def test_a_refusal_that_is_about_a_quota_pauses_nothing(mesh: Any, name: str) -> None:
    def refuse(transaction: Any) -> None:
        raise ResourceExhausted("the caller has as many tournaments as it may have")

    with pytest.raises(PodraceError):
        await mesh.state.transact(refuse)
    assert mesh.state.fault == ""


async def test_no_agent_is_generated_while_the_disk_is_nearly_full(mesh: Any, name: str) -> None:
    shortage = "the disk of /data has 10.0 MiB left"
    mesh.shortage = shortage
    await mesh.cycle()
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after"
    await mesh.cycle()
    assert (await mesh.get(name)).pause_reason == f"waiting for storage: {shortage}"
    assert mesh.leaderboard.generate_requests == []
    mesh.shortage = ""
    await mesh.cycle()
    await mesh.assigned(f"{name}-p0")
    await mesh.cycle()
    assert (await mesh.get(name)).pause_reason == ""
    assert await kinds(mesh, name) == ["storage_fault", "storage_recovered"]


async def test_a_disk_that_is_really_full_pauses_a_tournament_and_loses_nothing(
    tmp_path: Path, open_mesh: Any, spec: Any
) -> None:
    with small_disk(tmp_path, mebibytes=8):
        async with open_mesh() as mesh:
            name = await mesh.create(spec(maximum_pods=1))
            await mesh.cycle()
            work = await mesh.assigned(f"{name}-p0")
            with filled(tmp_path):
                for _ in range(20):
                    answer = await mesh.renew(work, activity=pb.POD_ACTIVITY_TRAINING, environment_steps=7, score=1.0)
                    assert answer.directive == pb.DIRECTIVE_CONTINUE
                    await cycles(mesh, 1.0)
                assert FULL in (await mesh.get(name)).pause_reason
                with pytest.raises(ResourceExhausted):
                    await mesh.complete(work)
            await cycles(mesh, 1.0)
            assert (await mesh.get(name)).pause_reason == ""
            await mesh.complete(work, progress=pb.Progress(environment_steps=9))
            await mesh.cycle(3.0)
            assert mesh.launcher.stopped == []
        async with open_mesh(launcher=mesh.launcher) as restarted:
            assert (await restarted.get(name)).environment_steps == 9
            assert await kinds(restarted, name, "agent_finished", "pod_died") == [
                *("storage_fault", "storage_recovered"),
                "agent_finished",
            ]


def _metric(name: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(name)
