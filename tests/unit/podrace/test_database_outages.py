"""A process that waits to lead survives an outage of the database server; wrong settings are reported at once."""

from collections.abc import Callable, MutableMapping
from typing import Any

import psycopg
import pytest

from leaderboard.store.schema import DATABASE_FORMAT
from podrace.database.leadership import READ, TAKE, Leadership, LeaseTimes
from podrace.database.outage import FIRST_SECONDS, LONGEST_SECONDS, Outage
from podrace.database.postgresql import PostgresqlServer
from podrace.errors import FailedPrecondition, PodraceError, Unavailable

MINUTES = 300.0
TIMES = LeaseTimes(lease=6.0, renew=3600.0, poll=0.0)
SERVER = PostgresqlServer("postgresql://podrace@db/podrace", "", DATABASE_FORMAT)
Log = list[MutableMapping[str, Any]]


class ScriptedServer:
    """A server of which another process leads, until it is free; unreachable between two times of a manual clock."""

    def __init__(self, down: tuple[float, float], *, at: str = "connect") -> None:
        self.now, self._down, self._at = 0.0, down, at
        self.free, self.open, self.attempts, self.waits = False, 0, 0, list[float]()

    def connect(self) -> "ScriptedServer":
        self.attempts += 1
        self._check("connect")
        self.open += 1
        return self

    def execute(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        self._check("connect")
        if statement == TAKE:
            self._check("take")
            return [(7,)] if self.free else []
        assert statement == READ
        self.now += 1.0
        return [("10.0.0.7:50051",)]

    def close(self) -> None:
        self.open -= 1

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        self.free = self.now > self._down[1]

    def outage(self, uniform: Callable[[float, float], float] = max) -> Outage:
        return Outage(monotonic=self.monotonic, sleep=self.sleep, uniform=uniform)

    def _check(self, at: str) -> None:
        if at == self._at and self._down[0] <= self.now < self._down[1]:
            raise Unavailable("database postgresql://db/podrace: connection refused")


async def acquired(server: ScriptedServer, outage: Outage) -> tuple[Leadership, list[str]]:
    leaders: list[str] = []

    def on_standby(leader: str) -> None:
        outage.end()
        leaders.append(leader)

    async def attempt() -> Leadership:
        return await Leadership.acquire(
            *(server.connect, "10.0.0.8:50051"), times=TIMES, on_standby=on_standby, monotonic=server.monotonic
        )

    return await outage.wait_until_usable(attempt), leaders


@pytest.mark.parametrize("at", ["connect", "take"])
@pytest.mark.parametrize("begin", [0.0, 5.0], ids=["at the start", "while it stands by"])
async def test_a_replica_that_waits_survives_an_outage_of_minutes_and_then_leads(
    begin: float, at: str, log_lines: Log
) -> None:
    server = ScriptedServer((begin, begin + MINUTES), at=at)
    leadership, leaders = await acquired(server, server.outage())
    assert leadership.epoch == 7
    assert leaders == ["10.0.0.7:50051"] * int(begin)
    assert server.open == 0
    assert server.now - begin - MINUTES <= LONGEST_SECONDS
    assert server.attempts < 2 * MINUTES / LONGEST_SECONDS
    outages = [line for line in log_lines if "database" in line["event"]]
    assert [line["log_level"] for line in outages] == ["warning", "info"]
    assert "connection refused" in outages[0]["error"]
    leadership.resign()


async def test_each_outage_and_its_end_are_logged_once(log_lines: Log) -> None:
    server = ScriptedServer((0.0, 0.0))
    outage = server.outage()
    for _ in range(2):
        for _ in range(5):
            await outage.wait(Unavailable("no"))
        for _ in range(3):
            outage.end()
    assert [line["log_level"] for line in log_lines] == ["warning", "info", "warning", "info"]
    assert log_lines[1]["seconds"] == round(sum(server.waits[:5]), 1)


async def test_the_waits_grow_to_a_limit_and_differ_between_replicas() -> None:
    server = ScriptedServer((0.0, 0.0))
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    outage = server.outage(uniform)
    for _ in range(8):
        await outage.wait(Unavailable("no"))
    assert drawn[0] == (FIRST_SECONDS / 2, FIRST_SECONDS)
    assert drawn[-1] == (LONGEST_SECONDS / 2, LONGEST_SECONDS)
    assert server.waits == sorted(server.waits) == [low for low, _ in drawn]
    outage.end()
    await outage.wait(Unavailable("no"))
    assert drawn[-1] == drawn[0]


async def test_what_waiting_cannot_mend_ends_the_wait_at_once() -> None:
    server = ScriptedServer((0.0, 0.0))

    async def attempt() -> None:
        raise FailedPrecondition("password authentication failed")

    with pytest.raises(FailedPrecondition):
        await server.outage().wait_until_usable(attempt)
    assert not server.waits


FAILED = 'connection failed: connection to server at "10.0.0.9", port 5432 failed: '


@pytest.mark.parametrize(
    "reason",
    [
        FAILED + 'FATAL:  password authentication failed for user "podrace"',
        FAILED + 'FATAL:  database "podrace" does not exist',
        FAILED + 'FATAL:  role "podrace" does not exist',
        FAILED + 'FATAL:  role "podrace" is not permitted to log in',
        FAILED + 'FATAL:  no pg_hba.conf entry for host "10.0.0.8", user "podrace", database "podrace"',
        FAILED + 'FATAL:  permission denied for database "podrace"',
        FAILED + "fe_sendauth: no password supplied",
        FAILED + "SSL error: certificate verify failed",
        FAILED + "server does not support SSL, but SSL was required",
        'connection failed: root certificate file "/root.crt" does not exist',
        'connection failed: invalid sslmode value: "always"',
    ],
)
def test_a_wrong_setting_is_reported_at_once(reason: str) -> None:
    assert isinstance(refusal(psycopg.OperationalError(reason)), FailedPrecondition)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError(FAILED + "Connection refused\n\tIs the server running on that host?"),
        psycopg.OperationalError(FAILED + "FATAL:  the database system is starting up"),
        psycopg.OperationalError(FAILED + "FATAL:  the database system is shutting down"),
        psycopg.OperationalError(FAILED + "FATAL:  the database system is in recovery mode"),
        psycopg.OperationalError(FAILED + "FATAL:  sorry, too many clients already"),
        psycopg.OperationalError('connection failed: could not translate host name "db" to address'),
        psycopg.errors.ConnectionTimeout("connection timeout expired"),
        psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
        psycopg.errors.DiskFull("could not extend file: No space left on device"),
        # The former primary, after a failover.
        psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction"),
    ],
)
def test_an_outage_or_a_failover_is_waited_for(error: psycopg.Error) -> None:
    assert isinstance(refusal(error), Unavailable)


def refusal(error: psycopg.Error) -> PodraceError:
    found = SERVER.refusal(error)
    assert "\n" not in found.message
    return found


async def test_a_leader_logs_once_that_its_lease_cannot_be_renewed(log_lines: Log) -> None:
    server = ScriptedServer((0.0, MINUTES))
    ended: list[None] = []

    def connect() -> ScriptedServer:
        server.now += 1.0
        return server.connect()

    leadership = Leadership(connect, 7, 0.0, LeaseTimes(lease=6.0, renew=0.0, poll=0.0), server.monotonic)
    leadership.on_lost(lambda: ended.append(None))
    assert "connection to the database was lost" in await leadership.lost()
    leadership.resign()
    assert server.attempts > 1
    assert [line["event"] for line in log_lines] == ["the lease of the leader could not be renewed"]
