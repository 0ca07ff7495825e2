from dataclasses import replace
from typing import Any

import pytest
from fake_services import ORPHANED_SECONDS, STARTING_SILENT_SECONDS, TOGETHER_SECONDS

from podrace.orchestrator.v1 import orchestrator_pb2 as pb

pytestmark = pytest.mark.asyncio


async def _silent_for(mesh: Any, seconds: float) -> None:
    """Lets all pods be silent, with the loop running all the time."""
    for _ in range(int(seconds)):
        await mesh.cycle(1.0)


async def test_a_silent_pod_is_killed_and_replaced_and_its_agent_continues(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    lost = await mesh.assigned(f"{name}-p0")
    await _silent_for(mesh, 19.0)
    assert mesh.launcher.stopped == []
    await _silent_for(mesh, 3.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]
    killed = next(event for event in await mesh.events(name) if event.kind == "pod_killed")
    assert "its lease expired 10 s ago" in killed.message
    found = await mesh.assigned(f"{name}-p1")
    assert (found.train.agent_id, found.lease_epoch) == (lost.train.agent_id, lost.lease_epoch + 1)


async def test_a_pod_that_renews_is_not_killed(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    for _ in range(10):
        await _silent_for(mesh, 5.0)
        await mesh.renew(work)
    assert mesh.launcher.stopped == []


async def test_a_draining_pod_that_is_silent_is_killed_before_the_limit_of_drained_pods(mesh: Any, spec: Any) -> None:
    mesh.launcher.stubborn = True
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.renew(await mesh.assigned(f"{name}-p0"), activity=pb.POD_ACTIVITY_PUBLISHING)
    await mesh.cancel(name)
    await _silent_for(mesh, 22.0)
    assert (f"{name}-p0", True) in mesh.launcher.stopped
    assert await mesh.pods(name) == []


async def test_a_pod_that_no_longer_asks_for_work_is_killed(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.complete(await mesh.assigned(f"{name}-p0"))
    await _silent_for(mesh, 21.0)
    assert (f"{name}-p0", True) in mesh.launcher.stopped


async def test_an_interrupted_orchestrator_kills_no_pod_when_it_continues(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.cycle(300.0)
    assert mesh.launcher.stopped == []
    await mesh.renew(work)
    await _silent_for(mesh, 9.0)
    assert mesh.launcher.stopped == []


def _stuck(number: int, **changes: Any) -> pb.StuckRole:
    progress = pb.RoleProgress(role="worker-0", phase=pb.ROLE_PHASE_COLLECTING, counter=7)
    return pb.StuckRole(number=number, progress=progress, reason="it does not answer", **changes)


async def _report(mesh: Any, work: pb.Assignment, *stuck: pb.StuckRole) -> None:
    request = pb.RenewAssignmentRequest(assignment_id=work.assignment_id, lease_epoch=1, stuck_roles=stuck)
    await mesh.call("RenewAssignment", request)


async def test_each_stuck_role_is_recorded_once_with_its_stacks(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    first = _stuck(1, restarted=True, stacks="step (gym/env.py:7)\x1b[2J")
    await _report(mesh, work, first)
    await _report(mesh, work, first, _stuck(2))
    events = [event for event in await mesh.events(name) if event.kind == "role_stuck"]
    assert [event.message for event in events] == [
        f"worker-0 of {name}-p0 is stuck, it is restarted: it does not answer; step (gym/env.py:7)\\x1b[2J",
        f"worker-0 of {name}-p0 is stuck, the pod is replaced: it does not answer",
    ]
    assert events[0].agent_id == f"{name}-a0"


async def test_a_pod_whose_leader_does_not_replace_a_stuck_role_is_killed(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    role = pb.RoleProgress(role="worker-0")
    role.age_duration.FromSeconds(70)
    role.deadline_duration.FromSeconds(10)
    await mesh.renew(work, roles=[role])
    await mesh.cycle()
    assert mesh.launcher.stopped == []
    role.age_duration.FromSeconds(71)
    await mesh.renew(work, roles=[role])
    await mesh.cycle()
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]


async def test_an_evicted_pod_that_waits_for_a_node_is_not_silent_until_it_has_called_again(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    pod_id = f"{name}-p0"
    await mesh.assigned(pod_id)
    running = mesh.launcher.pods[pod_id]
    mesh.launcher.pods[pod_id] = replace(running, started=False)
    await _silent_for(mesh, 60.0)
    mesh.launcher.pods[pod_id] = running
    await _silent_for(mesh, 60.0)
    assert mesh.launcher.stopped == [], "its processes may load for minutes"
    await mesh.assigned(pod_id, "after the eviction")
    await _silent_for(mesh, 22.0)
    assert mesh.launcher.stopped == [(pod_id, True)]


async def test_a_pod_that_was_listed_as_not_started_and_renews_is_expected_to_call(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    pod_id = f"{name}-p0"
    work = await mesh.assigned(pod_id)
    running = mesh.launcher.pods[pod_id]
    mesh.launcher.pods[pod_id] = replace(running, started=False)
    await _silent_for(mesh, 2.0)
    mesh.launcher.pods[pod_id] = running
    await mesh.renew(work)
    await _silent_for(mesh, 22.0)
    assert mesh.launcher.stopped == [(pod_id, True)]


async def test_a_pod_that_hung_before_a_restart_is_killed_although_another_pod_took_its_agent(
    open_mesh: Any, spec: Any
) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec(maximum_pods=2))
        await mesh.cycle()
        lost, launcher = await mesh.assigned(f"{name}-p0"), mesh.launcher
        pods = [f"{name}-p0", f"{name}-p1"]
    assert list(launcher.pods) == pods
    async with open_mesh(launcher=launcher) as mesh:
        await _silent_for(mesh, 11.0)
        found = await mesh.assigned(pods[1])
        assert found.train.agent_id == lost.train.agent_id
        for _ in range(4):
            await _silent_for(mesh, 3.0)
            await mesh.renew(found)
        assert launcher.stopped == [(pods[0], True)]


async def test_after_a_restart_pods_have_a_lease_duration_and_the_limit_to_call(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec(maximum_pods=2))
        await mesh.cycle()
        works, launcher = [await mesh.assigned(f"{name}-p{number}") for number in range(2)], mesh.launcher
    async with open_mesh(launcher=launcher) as mesh:
        await _silent_for(mesh, 19.0)
        for work in works:
            await mesh.renew(work)
        await _silent_for(mesh, 19.0)
        assert launcher.stopped == []


async def test_a_pod_that_hangs_before_its_first_call_is_killed_after_the_limit_for_starting(
    mesh: Any, spec: Any
) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await _silent_for(mesh, STARTING_SILENT_SECONDS - 1)
    assert mesh.launcher.stopped == []
    await _silent_for(mesh, 2.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]
    killed = next(event for event in await mesh.events(name) if event.kind == "pod_killed")
    assert "it has been running for 150 s without a call" in killed.message


async def test_the_time_in_which_a_pod_waits_for_a_node_does_not_count_as_starting(mesh: Any, spec: Any) -> None:
    mesh.launcher.waits_for_a_node = True
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    pod_id = f"{name}-p0"
    await _silent_for(mesh, STARTING_SILENT_SECONDS + 10)
    assert mesh.launcher.stopped == []
    mesh.launcher.pods[pod_id] = replace(mesh.launcher.pods[pod_id], started=True)
    await _silent_for(mesh, STARTING_SILENT_SECONDS - 1)
    assert mesh.launcher.stopped == []
    await _silent_for(mesh, 3.0)
    assert mesh.launcher.stopped == [(pod_id, True)]


async def test_a_pod_that_hung_before_its_first_call_is_also_killed_after_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.cycle()
        launcher = mesh.launcher
    async with open_mesh(launcher=launcher) as mesh:
        await _silent_for(mesh, STARTING_SILENT_SECONDS - 1)
        assert launcher.stopped == []
        await _silent_for(mesh, 3.0)
        assert launcher.stopped == [(f"{name}-p0", True)]


async def test_a_pod_that_opens_its_roles_keeps_its_time_after_another_pod_took_its_agent(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=2))
    await mesh.cycle()
    await mesh.renew(await mesh.assigned(f"{name}-p0"), activity=pb.POD_ACTIVITY_OPENING)
    await _silent_for(mesh, 11.0)
    found = await mesh.assigned(f"{name}-p1")
    for seconds, stopped in ((118.0, []), (3.0, [(f"{name}-p0", True)])):
        for _ in range(int(seconds)):
            await mesh.renew(found)
            await _silent_for(mesh, 1.0)
        assert mesh.launcher.stopped == stopped


async def _training_pods(mesh: Any, spec: Any, count: int = 2) -> tuple[str, list[pb.Assignment]]:
    name = await mesh.create(spec(minimum_pods=count, maximum_pods=count))
    await mesh.cycle()
    return name, [await mesh.assigned(f"{name}-p{number}") for number in range(count)]


async def test_pods_that_stopped_calling_together_are_not_killed_and_continue(
    mesh: Any, spec: Any, log_lines: list[dict[str, Any]]
) -> None:
    _, works = await _training_pods(mesh, spec)
    await _silent_for(mesh, 40.0)
    assert mesh.launcher.stopped == []
    lines = [line for line in log_lines if "no pod calls" in line["event"]]
    assert [(line["log_level"], line["pods"]) for line in lines] == [("warning", 2)]
    for work in works:
        await mesh.renew(work)
        await _silent_for(mesh, 5.0)
    assert mesh.launcher.stopped == []


async def test_after_an_interruption_the_other_pods_have_time_to_call_again(mesh: Any, spec: Any) -> None:
    name, works = await _training_pods(mesh, spec)
    await _silent_for(mesh, 40.0)
    for _ in range(9):
        await mesh.renew(works[0])
        await _silent_for(mesh, 2.0)
    assert mesh.launcher.stopped == []
    await mesh.renew(works[0])
    await _silent_for(mesh, 4.0)
    assert mesh.launcher.stopped == [(f"{name}-p1", True)]


async def test_pods_that_stay_silent_together_are_killed_after_the_limit_for_them(mesh: Any, spec: Any) -> None:
    name, _ = await _training_pods(mesh, spec)
    await _silent_for(mesh, TOGETHER_SECONDS - 1)
    assert mesh.launcher.stopped == []
    await _silent_for(mesh, 2.0)
    assert sorted(mesh.launcher.stopped) == [(f"{name}-p0", True), (f"{name}-p1", True)]


async def test_a_pod_that_calls_while_others_that_were_silent_with_it_are_killed_is_kept(mesh: Any, spec: Any) -> None:
    """Killing takes time: the connection may work again before the last of them is killed."""
    name, works = await _training_pods(mesh, spec, count=3)

    async def one_calls(pod_id: str) -> None:
        await mesh.renew(works[2])

    mesh.launcher.stopping = one_calls
    await _silent_for(mesh, TOGETHER_SECONDS + 1)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]
    mesh.launcher.stopping = None
    await mesh.renew(works[1])
    await mesh.renew(works[2])
    await _silent_for(mesh, 15.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]


@pytest.mark.parametrize("count", [1, 2])
async def test_an_orchestrator_that_was_cut_off_kills_no_pod_that_trains_on(mesh: Any, spec: Any, count: int) -> None:
    """Neither its launcher nor a pod can be reached, for longer than any pod may be silent."""
    _, works = await _training_pods(mesh, spec, count)
    mesh.launcher.unavailable = True
    await _silent_for(mesh, ORPHANED_SECONDS - 30)
    mesh.launcher.unavailable = False
    await _silent_for(mesh, 19.0)
    assert mesh.launcher.stopped == []
    for work in works:
        await mesh.renew(work)
    await _silent_for(mesh, 9.0)
    assert mesh.launcher.stopped == []


async def test_a_pod_that_does_not_call_again_after_the_orchestrator_was_cut_off_is_killed(
    mesh: Any, spec: Any
) -> None:
    name, works = await _training_pods(mesh, spec)
    mesh.launcher.unavailable = True
    await _silent_for(mesh, 60.0)
    mesh.launcher.unavailable = False
    for _ in range(9):
        await mesh.renew(works[0])
        await _silent_for(mesh, 2.0)
    assert mesh.launcher.stopped == []
    await mesh.renew(works[0])
    await _silent_for(mesh, 4.0)
    assert mesh.launcher.stopped == [(f"{name}-p1", True)]


async def test_a_short_outage_of_the_launcher_gives_a_silent_pod_no_time(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.assigned(f"{name}-p0")
    await _silent_for(mesh, 10.0)
    mesh.launcher.unavailable = True
    await _silent_for(mesh, 8.0)
    mesh.launcher.unavailable = False
    await _silent_for(mesh, 4.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]


async def test_a_launcher_that_fails_again_and_again_keeps_no_pod_that_hangs(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec(maximum_pods=1))
    await mesh.cycle()
    await mesh.assigned(f"{name}-p0")
    for _ in range(int(ORPHANED_SECONDS / 16)):
        mesh.launcher.unavailable = True
        await _silent_for(mesh, 15.0)
        mesh.launcher.unavailable = False
        await _silent_for(mesh, 1.0)
        assert mesh.launcher.stopped == []
    await _silent_for(mesh, 16.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]


async def test_a_silent_pod_among_others_that_call_is_killed_as_fast_as_alone(mesh: Any, spec: Any) -> None:
    name, works = await _training_pods(mesh, spec)
    for _ in range(7):
        await mesh.renew(works[1])
        await _silent_for(mesh, 3.0)
    assert mesh.launcher.stopped == [(f"{name}-p0", True)]
