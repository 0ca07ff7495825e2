"""An orchestrator that does not lead any more starts and stops no pod."""

from contextlib import suppress
from typing import Any

import pytest

from podrace.errors import Unavailable

pytestmark = pytest.mark.asyncio


class Lease:
    """A leadership that a test ends."""

    valid = True

    def check(self) -> None:
        if not self.valid:
            raise Unavailable("another replica leads")


async def test_an_old_leader_starts_no_pod(open_mesh: Any, spec: Any) -> None:
    lease = Lease()
    async with open_mesh(check_leads=lease.check) as mesh:
        await mesh.create(spec(maximum_pods=1))
        lease.valid = False
        await mesh.cycle()
        assert mesh.launcher.pods == {}
        lease.valid = True
        await mesh.cycle(60.0)
        assert len(mesh.launcher.pods) == 1


async def test_an_old_leader_kills_no_silent_pod_and_stops_none_whose_tournament_has_ended(
    open_mesh: Any, spec: Any
) -> None:
    lease = Lease()
    async with open_mesh(check_leads=lease.check) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.cycle()
        await mesh.assigned(f"{name}-p0")
        lease.valid = False
        for _ in range(25):
            with suppress(Unavailable):
                await mesh.cycle(1.0)
        assert mesh.launcher.stopped == []
        lease.valid = True
        await mesh.cycle(1.0)
        assert mesh.launcher.stopped == [(f"{name}-p0", True)]
