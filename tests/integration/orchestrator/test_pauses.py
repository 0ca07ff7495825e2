"""Users pause tournaments: pods publish and exit, the clock stands still, and a resumed tournament continues."""

from typing import Any

import pytest

from podrace.errors import FailedPrecondition, NotFound
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

REASON = "the node is needed"


def seconds(found: Any) -> int:
    return int(found.running_duration.ToSeconds())


async def drain(mesh: Any, work: Any) -> None:
    """Does what a pod does when it is asked to drain."""
    answer = await mesh.renew(work)
    assert answer.directive == pb.DIRECTIVE_DRAIN
    await mesh.complete(work, pb.OUTCOME_DRAINED)


async def test_pods_of_a_paused_tournament_publish_and_exit_and_none_is_started(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.pause(name, REASON)
    answer = await mesh.renew(work)
    assert answer.directive == pb.DIRECTIVE_DRAIN
    assert answer.reason.startswith(f"tournament {name} is paused by ")
    assert answer.reason.endswith(f": {REASON}")
    await mesh.cycle()
    await mesh.complete(work, pb.OUTCOME_DRAINED)
    assert (await mesh.acquire(f"{name}-p0")).WhichOneof("answer") == "drain"
    mesh.launcher.pods.clear()
    for _ in range(3):
        await mesh.cycle(5.0)
    assert await mesh.pods(name) == []
    assert "pod_died" not in await mesh.kinds(name)


async def test_the_clock_stands_still_until_the_tournament_is_resumed(mesh: Any, name: str) -> None:
    await mesh.cycle(1.0)
    await mesh.pause(name)
    await mesh.cycle()
    before = seconds(await mesh.get(name))
    await mesh.cycle(1000.0)
    found = await mesh.get(name)
    assert seconds(found) == before
    assert found.pause_reason.endswith(f": {REASON}")
    await mesh.resume(name)
    await mesh.cycle()
    await mesh.cycle(7.0)
    found = await mesh.get(name)
    assert (seconds(found), found.pause_reason) == (before + 7, "")
    assert (await mesh.kinds(name)).count("tournament_resumed") == 1


async def test_the_agent_of_a_drained_pod_continues_after_the_pause(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.pause(name)
    await mesh.cycle()
    await drain(mesh, work)
    mesh.launcher.pods.clear()
    await mesh.cycle(30.0)
    await mesh.resume(name)
    await mesh.cycle(30.0)
    again = await mesh.assigned((await mesh.pods(name))[0].pod_id)
    assert again.train.agent_id == work.train.agent_id
    assert again.lease_epoch == work.lease_epoch + 1


async def test_an_objective_is_not_checked_in_a_pause(mesh: Any, spec: Any) -> None:
    made = spec()
    made.objective.Clear()
    made.objective.environment_steps = 10
    name = await mesh.create(made)
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    await mesh.pause(name)
    await mesh.complete(work, pb.OUTCOME_DRAINED, progress=pb.Progress(environment_steps=20))
    await mesh.cycle(1.0)
    assert (await mesh.get(name)).pause_reason
    await mesh.resume(name)
    await mesh.cycle(1.0)
    assert "tournament_ending" in await mesh.kinds(name)


async def test_evaluations_of_a_paused_tournament_are_played(mesh: Any, name: str) -> None:
    work = await mesh.assigned(f"{name}-p0")
    await mesh.pause(name)
    await mesh.cycle()
    await drain(mesh, work)
    mesh.launcher.pods.clear()
    await mesh.cycle(30.0)
    await mesh.evaluate(name)
    await mesh.cycle(30.0)
    (pod,) = await mesh.pods(name)
    assert (await mesh.assigned(pod.pod_id)).WhichOneof("work") == "evaluate"


async def test_a_pause_survives_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = await mesh.create(spec())
        await mesh.pause(name)
    async with open_mesh() as mesh:
        await mesh.cycle(10.0)
        assert (await mesh.get(name)).pause_reason.endswith(f": {REASON}")
        assert await mesh.pods(name) == []
        await mesh.resume(name)
        await mesh.cycle()
        assert await mesh.pods(name)


async def test_a_second_pause_changes_nothing(mesh: Any, name: str) -> None:
    await mesh.pause(name)
    await mesh.pause(name, "another reason")
    assert (await mesh.get(name)).pause_reason.endswith(f": {REASON}")
    assert (await mesh.kinds(name)).count("tournament_paused") == 1


async def test_only_a_running_tournament_can_be_paused(mesh: Any, name: str) -> None:
    with pytest.raises(NotFound):
        await mesh.pause("nothing")
    await mesh.cancel(name)
    with pytest.raises(FailedPrecondition) as raised:
        await mesh.pause(name)
    assert raised.value.reason == "ERROR_REASON_TOURNAMENT_ENDED"


async def test_a_paused_tournament_that_is_cancelled_and_resumed_is_not_paused(mesh: Any, name: str) -> None:
    await mesh.pause(name)
    await mesh.cancel(name)
    assert (await mesh.get(name)).pause_reason == ""
    await mesh.resume(name)
    await mesh.cycle()
    assert (await mesh.get(name)).pause_reason == ""
    assert await mesh.pods(name)


async def test_a_reason_with_control_characters_is_escaped(mesh: Any, name: str) -> None:
    await mesh.pause(name, "needed\x1b[2J\nforged line")
    assert not {"\x1b", "\n"} & set((await mesh.get(name)).pause_reason)
