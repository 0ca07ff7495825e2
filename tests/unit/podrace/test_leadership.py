"""A leader may change something outside of the database only while its lease is valid by its own clock."""

from typing import Any

import pytest

from podrace.database.leadership import Leadership, LeaseTimes, leader_check
from podrace.errors import Unavailable

TIMES = LeaseTimes(lease=6.0, renew=3600.0, poll=0.0)


class FreeServer:
    """A database without a leader, and a manual clock."""

    now = 100.0

    def connect(self) -> "FreeServer":
        return self

    def execute(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        return [(7,)]

    def close(self) -> None:
        pass

    def monotonic(self) -> float:
        return self.now


async def test_a_leader_that_was_stopped_for_longer_than_its_lease_fails_the_check() -> None:
    server = FreeServer()
    leadership = await Leadership.acquire(
        *(server.connect, "10.0.0.7:50051"), times=TIMES, on_standby=print, monotonic=server.monotonic
    )
    check = leader_check(leadership)
    server.now += 5.9
    check()
    server.now += 0.1
    with pytest.raises(Unavailable, match="another replica of this service leads"):
        check()
    leadership.resign()


async def test_a_leader_that_was_replaced_fails_the_check_at_once() -> None:
    server = FreeServer()
    leadership = await Leadership.acquire(
        *(server.connect, "10.0.0.7:50051"), times=TIMES, on_standby=print, monotonic=server.monotonic
    )
    leadership.lose()
    with pytest.raises(Unavailable):
        leader_check(leadership)()
    leadership.resign()


def test_a_database_in_a_file_has_no_other_leader() -> None:
    leader_check(None)()
