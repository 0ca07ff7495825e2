"""The connections of a service to PostgreSQL pass through a fault proxy: each fault ends in a bounded time."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from postgresql_server import MISSING, PostgresqlServer, programs, running_server

from benchmarks.connections.fault_proxy import FaultProxy
from leaderboard.store import schema
from podrace import rpc
from podrace.backup.config import BackupConfig
from podrace.backup.opening import open_when_leading
from podrace.database import Database, DatabaseLocation, Format, Transaction, open_database, postgresql
from podrace.database.deadline import interrupt
from podrace.database.leadership import Leadership, LeaseTimes
from podrace.database.outage import Outage
from podrace.database.postgresql import PostgresqlEngine
from podrace.errors import FailedPrecondition, PodraceError, Unavailable

TIMES = LeaseTimes(lease=2.0, renew=0.2, poll=0.1)
BOUND_SECONDS = 15.0
FAULTS = ["drop", "half_open", "one_way", "reset", "refuse"]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    if programs() is None:
        pytest.skip(MISSING)
    with running_server(listen="127.0.0.1") as server:
        yield server


@pytest.fixture
async def proxy(server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultProxy]:
    monkeypatch.setattr(postgresql, "STATEMENT_SECONDS", 2.0)
    # A lease may be renewed on a new connection while a transaction waits on the old one.
    monkeypatch.setattr(postgresql, "TRANSACTION_SECONDS", 4.0)
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 2)
    async with FaultProxy(f"127.0.0.1:{server.port}") as proxy:
        yield proxy


@pytest.fixture
def location(server: PostgresqlServer, proxy: FaultProxy) -> DatabaseLocation:
    name = server.new_url().partition("@/")[2].partition("?")[0]
    return DatabaseLocation.of(f"postgresql://podrace@{proxy.address}/{name}?sslmode=disable&gssencmode=disable")


async def opened(location: DatabaseLocation) -> tuple[Database, Leadership]:
    database, leadership = await open_database(location, schema.DATABASE_FORMAT, time.time, times=TIMES)
    assert leadership is not None
    return database, leadership


def add(transaction: Transaction, name: str) -> None:
    transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES (?, ?)", name, b"")


def names(transaction: Transaction) -> list[str]:
    return [name for (name,) in transaction.execute("SELECT tournament_id FROM tournaments ORDER BY tournament_id")]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_leader_whose_connections_fail_stops_and_its_successor_has_all_that_was_answered(
    proxy: FaultProxy, location: DatabaseLocation, fault: str
) -> None:
    database, leadership = await opened(location)
    await database.transact(add, "a")
    getattr(proxy, fault)()
    async with asyncio.timeout(BOUND_SECONDS):
        with pytest.raises(Unavailable):
            await database.transact(add, "b")
        await leadership.lost()
        await asyncio.to_thread(database.close)
    proxy.heal()
    async with asyncio.timeout(BOUND_SECONDS):
        later, _ = await opened(location)
    assert "a" in await later.transact(names)
    await later.transact(add, "c")
    await asyncio.to_thread(later.close)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_replica_that_waits_takes_over_although_its_connection_fails(
    proxy: FaultProxy, location: DatabaseLocation, server: PostgresqlServer, fault: str
) -> None:
    direct = DatabaseLocation.of(location.url.replace(proxy.address, f"127.0.0.1:{server.port}"))
    leader, _ = await opened(direct)
    waits = asyncio.Event()

    async def stand_by() -> Database:
        format = schema.DATABASE_FORMAT
        return (await open_database(location, format, time.time, times=TIMES, on_standby=lambda _: waits.set()))[0]

    standing_by = asyncio.create_task(stand_by())
    async with asyncio.timeout(2 * BOUND_SECONDS):
        await waits.wait()
        getattr(proxy, fault)()
        await asyncio.to_thread(leader.close)
        done, _ = await asyncio.wait([standing_by], timeout=1.0 if fault in ("drop", "one_way", "refuse") else 0.0)
        assert not done
        proxy.heal()
        later = await standing_by
    await later.transact(add, "b")
    await asyncio.to_thread(later.close)


async def test_a_slow_network_only_delays(proxy: FaultProxy, location: DatabaseLocation) -> None:
    database, leadership = await opened(location)
    proxy.delay(0.05)
    for name in ("a", "b"):
        await database.transact(add, name)
    assert await database.transact(names) == ["a", "b"]
    assert leadership.is_valid()
    await asyncio.to_thread(database.close)


async def test_a_transaction_without_an_answer_ends_although_the_lease_is_renewed(
    proxy: FaultProxy, location: DatabaseLocation, server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "TRANSACTION_SECONDS", 1.0)
    database, leadership = await opened(location)
    await database.transact(add, "a")
    direct: Any = postgresql.PostgresqlServer(
        location.url.replace(proxy.address, f"127.0.0.1:{server.port}"), "", schema.DATABASE_FORMAT
    )
    leadership._connect = direct.connect
    proxy.half_open()
    async with asyncio.timeout(BOUND_SECONDS):
        with pytest.raises(Unavailable):
            await database.transact(add, "b")
        await leadership.lost()
        await asyncio.to_thread(database.close)


@pytest.mark.parametrize("fault", ["refuse", "drop"])
async def test_a_service_that_starts_during_an_outage_answers_health_checks_and_then_leads(
    proxy: FaultProxy, location: DatabaseLocation, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, wait = asyncio.Event(), Outage.wait

    async def observed(outage: Outage, error: PodraceError) -> None:
        refused.set()
        await wait(outage, error)

    monkeypatch.setattr(Outage, "wait", observed)
    getattr(proxy, fault)()
    config = rpc.ServerConfig(health_listen=f"127.0.0.1:{free_port()}")
    opening = asyncio.create_task(
        open_when_leading(location, schema.DATABASE_FORMAT, time.time, BackupConfig(), "", config)
    )
    async with asyncio.timeout(2 * BOUND_SECONDS):
        await refused.wait()
        assert await status(config.health_listen) == health_pb2.HealthCheckResponse.SERVING
        assert not opening.done()
        proxy.heal()
        backed_up = await opening
    await backed_up.database.transact(add, "a")
    await asyncio.to_thread(backed_up.database.close)


async def status(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        return int(answer.status)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_an_unknown_database_is_reported_at_once(server: PostgresqlServer) -> None:
    url = f"postgresql://podrace@127.0.0.1:{server.port}/absent?sslmode=disable&gssencmode=disable"
    with pytest.raises(FailedPrecondition, match='database "absent" does not exist; correct the setting') as caught:
        await opened(DatabaseLocation.of(url))
    assert "\n" not in caught.value.message


async def test_a_database_that_cannot_be_prepared_for_a_while_is_opened_later(
    proxy: FaultProxy, location: DatabaseLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fails between the acquisition of the lease and the first transaction."""
    prepare, failures = PostgresqlEngine._prepare, [1, 2]

    def failing(engine: PostgresqlEngine, format: Format) -> None:
        if failures:
            failures.pop()
            interrupt(engine._link)
        prepare(engine, format)

    monkeypatch.setattr(PostgresqlEngine, "_prepare", failing)
    async with asyncio.timeout(2 * BOUND_SECONDS):
        database, leadership = await opened(location)
    await database.transact(add, "a")
    assert leadership.is_valid()
    assert leadership.epoch == 3
    await asyncio.to_thread(database.close)
