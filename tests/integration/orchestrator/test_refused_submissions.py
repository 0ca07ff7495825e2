"""Tests the events about submissions that the leaderboard refused."""

from typing import Any

from podrace.leaderboard.v1.leaderboard_pb2 import Refusal


def refused(mesh: Any, work: Any, number: int, epoch: int = 1) -> None:
    mesh.leaderboard.refusals.append(
        Refusal(
            number=number,
            agent_id=work.train.agent_id,
            manifest_digest="ab" * 32,
            lease_epoch=epoch,
            error_reason="ERROR_REASON_BAD_CHECKPOINT",
            message=f"manifest: seed = {number}: expected 7",
        )
    )


async def found(mesh: Any, name: str) -> list[tuple[str, str, str]]:
    return [
        (event.pod_id, event.agent_id, event.message)
        for event in await mesh.events(name)
        if event.kind == "submission_refused"
    ]


async def test_a_refused_submission_is_an_event_with_its_pod_and_its_reason_once(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    work = await mesh.assigned(f"{name}-p0")
    refused(mesh, work, 1)
    for _ in range(3):
        await mesh.cycle(1.0)
    agent_id = work.train.agent_id
    line = f"checkpoint abababababab of {agent_id} was refused (BAD_CHECKPOINT): manifest: seed = 1: expected 7"
    assert await found(mesh, name) == [(f"{name}-p0", agent_id, line)]
    refused(mesh, work, 2, epoch=9)
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    assert [pod_id for pod_id, _, _ in await found(mesh, name)] == [f"{name}-p0", ""], "no pod has that epoch"


async def test_an_orchestrator_that_was_restarted_does_not_record_it_again(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    await mesh.cycle()
    refused(mesh, await mesh.assigned(f"{name}-p0"), 1)
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    mesh.reconciler._completion_check._refused._last.clear()
    await mesh.cycle(1.0)
    await mesh.cycle(1.0)
    assert len(await found(mesh, name)) == 1
