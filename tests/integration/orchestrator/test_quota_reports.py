"""Tests the events about checkpoints that were deleted because of a quota."""

from typing import Any


async def found(mesh: Any, name: str) -> list[str]:
    return [event.message for event in await mesh.events(name) if event.kind == "checkpoints_deleted"]


async def test_what_a_quota_deleted_is_an_event_each_time_that_it_is_more(mesh: Any, spec: Any) -> None:
    name = await mesh.create(spec())
    for _ in range(3):
        await mesh.cycle(1.0)
    assert await found(mesh, name) == []
    for report in ("2 snapshots: 70 bytes", "3 snapshots: 90 bytes"):
        mesh.leaderboard.quota_report = report
        for _ in range(3):
            await mesh.cycle(1.0)
    messages = [
        "deleted since the leaderboard started: " + report
        for report in ("2 snapshots: 70 bytes", "3 snapshots: 90 bytes")
    ]
    assert await found(mesh, name) == messages
