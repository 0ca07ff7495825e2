"""A full store pauses a tournament instead of ending it."""

from typing import Any

from podrace.errors import ResourceExhausted
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

FULL = "the disk of the store is full"


async def kinds(mesh: Any, name: str) -> list[str]:
    return [event.kind for event in await mesh.events(name) if event.kind.startswith("storage_")]


async def test_while_all_pods_wait_for_storage_the_clock_stands_still(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.cycle(1.0)
    before = (await mesh.get(name)).running_duration.ToSeconds()
    await mesh.renew(work, storage_fault=FULL)
    await mesh.cycle(2.0)
    paused = await mesh.get(name)
    assert paused.pause_reason == f"waiting for storage: {FULL}"
    for _ in range(5):
        await mesh.renew(work, storage_fault=FULL)
        await mesh.cycle(5.0)
    assert (await mesh.get(name)).running_duration.ToSeconds() == before + 2, "the time until it was noticed counts"

    await mesh.renew(work)
    await mesh.cycle(1.0)
    await mesh.cycle(3.0)
    resumed = await mesh.get(name)
    assert resumed.pause_reason == ""
    assert resumed.running_duration.ToSeconds() == before + 5
    assert await kinds(mesh, name) == ["storage_fault", "storage_recovered"]


async def test_a_tournament_in_which_a_pod_still_trains_is_not_paused(mesh: Any, name: str) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.renew(works[0], storage_fault=FULL)
    await mesh.renew(works[1], activity=pb.POD_ACTIVITY_TRAINING)
    await mesh.cycle()
    assert (await mesh.get(name)).pause_reason == ""
    assert await kinds(mesh, name) == ["storage_fault"]


async def test_a_pod_that_waits_and_dies_does_not_pause_the_tournament_forever(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(work, storage_fault=FULL)
    await mesh.cycle(1.0)
    assert (await mesh.get(name)).pause_reason
    await mesh.cycle(30.0)
    assert (await mesh.get(name)).pause_reason == "", "its lease has expired"


async def test_a_fault_with_control_characters_is_escaped(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.renew(work, storage_fault="full\x1b[2J\nforged line", activity=pb.POD_ACTIVITY_TRAINING)
    await mesh.cycle()
    reason = (await mesh.get(name)).pause_reason
    assert not {"\x1b", "\n"} & set(reason)


async def test_while_the_leaderboard_has_no_space_for_agents_the_tournament_is_paused(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = ResourceExhausted(FULL)
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "retry_after"
    await mesh.cycle()
    assert (await mesh.get(name)).pause_reason == f"waiting for storage: {FULL}"
    mesh.leaderboard.refusal = None
    await mesh.assigned(f"{name}-p0")
    await mesh.cycle()
    assert (await mesh.get(name)).pause_reason == ""
    assert await kinds(mesh, name) == ["storage_fault", "storage_recovered"]


async def test_a_tournament_that_ends_while_there_is_no_space_is_not_paused_any_more(mesh: Any, name: str) -> None:
    mesh.leaderboard.refusal = ResourceExhausted(FULL)
    await mesh.acquire(f"{name}-p0")
    await mesh.cycle()
    assert mesh.runtime.paused
    await mesh.cancel(name)
    await mesh.cycle()
    assert mesh.runtime.paused == mesh.runtime.without_space == {}
    assert await kinds(mesh, name) == ["storage_fault", "storage_recovered"]
