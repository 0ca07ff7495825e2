"""A wall clock that jumps by hours changes nothing but the times that are recorded."""

from typing import Any

import pytest

HOURS = 6 * 3600.0


@pytest.mark.parametrize("jump", [HOURS, -HOURS])
async def test_leases_pods_and_the_clock_of_a_tournament_do_not_follow_the_wall_clock(
    mesh: Any, name: str, jump: float
) -> None:
    works = [await mesh.assigned(f"{name}-p{number}") for number in range(2)]
    await mesh.cycle(1.0)
    before = (await mesh.get(name)).running_duration.ToSeconds()
    kinds = [event.kind for event in await mesh.events(name)]
    mesh.clock.jumped_seconds = jump
    for _ in range(5):
        for work in works:
            await mesh.renew(work)
        await mesh.cycle(2.0)
    found = await mesh.get(name)
    assert found.running_duration.ToSeconds() == before + 10
    assert found.pause_reason == ""
    assert [event.kind for event in await mesh.events(name)] == kinds, "no pod was replaced, and no lease has expired"


@pytest.mark.parametrize("jump", [HOURS, -HOURS])
async def test_a_lease_that_is_not_renewed_expires_after_its_own_time(mesh: Any, name: str, jump: float) -> None:
    work = await mesh.assigned(f"{name}-p0")
    mesh.clock.jumped_seconds = jump
    await mesh.cycle(5.0)
    assert not [event for event in await mesh.events(name) if event.kind == "lease_expired"]
    await mesh.cycle(6.0)
    again = await mesh.assigned(f"{name}-p1")
    assert again.train.agent_id == work.train.agent_id
    assert again.lease_epoch == work.lease_epoch + 1
