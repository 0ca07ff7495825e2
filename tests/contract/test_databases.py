"""Tests what holds for the database of a service in a file of SQLite and on a server of PostgreSQL alike."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgresql_server import PostgresqlServer

from leaderboard.store import schema as board
from orchestrator.state import database as state
from orchestrator.state import saved_state
from orchestrator.state.database import StateDatabase
from orchestrator.state.lists import fields, queries
from orchestrator.state.records import RUNNING, AgentRecord, LabelsRecord, TournamentRecord, WorkPhase, find, save
from podrace.database import LARGEST_NUMBER, Database, DatabaseLocation, Format, Transaction, open_database
from podrace.database.dialect import translated
from podrace.database.leadership import LeaseTimes
from podrace.database.location import read_password
from podrace.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from podrace.listing.selection import ListSelection
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NEXT = replace(
    board.DATABASE_FORMAT,
    version=6,
    migrations={
        4: "ALTER TABLE tournaments ADD COLUMN color TEXT; UPDATE tournaments SET color = 'red'",
        5: "ALTER TABLE tournaments RENAME COLUMN color TO shade",
    },
)
Open = Callable[[Format], Awaitable[Database]]


def clock() -> float:
    return 1.0


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> DatabaseLocation:
    if request.param == "sqlite":
        return DatabaseLocation.of(str(tmp_path / "state.sqlite"))
    return DatabaseLocation.of(request.getfixturevalue("postgresql").new_url())


@pytest.fixture
async def opened(location: DatabaseLocation) -> AsyncIterator[Open]:
    """Opens the database; the previous instance is closed first."""
    current: list[Database] = []

    async def open(format: Format) -> Database:
        while current:
            current.pop().close()
        database, _ = await open_database(location, format, clock)
        current.append(database)
        return database

    yield open
    for one in current:
        one.close()


def insert(transaction: Transaction, name: str) -> None:
    transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES (?, ?)", name, b"\0\xff")


def names(transaction: Transaction) -> list[str]:
    return [row[0] for row in transaction.execute("SELECT tournament_id FROM tournaments ORDER BY tournament_id")]


def insert_and_fail(transaction: Transaction, name: str) -> None:
    insert(transaction, name)
    raise NotFound("no")


@pytest.mark.parametrize("format", [board.DATABASE_FORMAT, state.DATABASE_FORMAT], ids=lambda one: one.owner)
async def test_acknowledged_changes_survive_a_restart(opened: Open, format: Format) -> None:
    database = await opened(format)
    for name in ("b", "B", "a-2", "a1"):
        await database.transact(insert, name)
    database = await opened(format)
    # Texts are ordered by their bytes, whatever the language of the server.
    assert await database.transact(names) == ["B", "a-2", "a1", "b"]


async def test_only_failed_changes_are_rolled_back_wherever_they_are_in_a_commit(opened: Open) -> None:
    database = await opened(board.DATABASE_FORMAT)
    await database.transact(insert, "a")
    duplicate = [database.transact(insert, "a")]
    changes = [
        *(database.transact(insert_and_fail, "x"), *duplicate, database.transact(insert, "b")),
        *(database.transact(insert_and_fail, "y"), database.transact(insert, "c"), database.transact(insert, "b")),
    ]
    results = await asyncio.gather(*changes, return_exceptions=True)
    assert [result is None for result in results] == [False, False, True, False, True, False]
    assert await database.transact(names) == ["a", "b", "c"]


async def test_a_number_too_large_for_the_database_is_an_invalid_argument(opened: Open) -> None:
    database = await opened(board.DATABASE_FORMAT)
    with pytest.raises(InvalidArgument, match=rf"18446744073709551615 is too large: at most {LARGEST_NUMBER}"):
        await database.transact(lambda transaction: transaction.execute("SELECT ?", 2**64 - 1))


async def test_a_database_of_an_earlier_version_is_migrated_step_by_step(opened: Open) -> None:
    await (await opened(board.DATABASE_FORMAT)).transact(insert, "a")
    broken = replace(NEXT, migrations={4: NEXT.migrations[4], 5: "ALTER TABLE absent ADD COLUMN x TEXT"})
    with pytest.raises(FailedPrecondition, match="absent"):
        await opened(broken)
    for _ in range(2):
        database = await opened(NEXT)
        found = await database.transact(lambda transaction: transaction.execute("SELECT * FROM tournaments"))
        assert [(row[0], row[1], "red" in row) for row in found] == [("a", b"\0\xff", True)]
    with pytest.raises(FailedPrecondition, match="written by another version"):
        await opened(board.DATABASE_FORMAT)


def tournament(name: str, sequence: int) -> TournamentRecord:
    spec = TournamentSpec(name=name)
    return TournamentRecord(
        f"{name}-aaaaaa", sequence, spec, RUNNING, "", 10.0, None, 0, 1, 1, 1, "", 0, 0, None
    )  # fmt: skip


def agent(number: int) -> AgentRecord:
    name = f"first-aaaaaa-a{number}"
    return AgentRecord(name, "first-aaaaaa", number, WorkPhase.UNFINISHED, 1, "", "", 0, None)


async def test_records_lists_and_counters_are_the_same(opened: Open) -> None:
    database = StateDatabase(await opened(state.DATABASE_FORMAT))
    for one in (tournament("first", 1), tournament("second", 2), agent(0), agent(1)):
        await database.transact(save, one)
    await database.transact(save, LabelsRecord("second-aaaaaa", '{"team/x": "red*", "b": "1"}'))
    steps = {"first-aaaaaa-a0": 2**40, "first-aaaaaa-a1": 3, "unknown": 5}
    for epoch in (2, 3):
        epochs = {"first-aaaaaa": epoch, "deleted": epoch}
        changes = saved_state.UnsavedChanges(steps, {"first-aaaaaa": 1.5}, {}, epochs)
        await database.transact(saved_state.write_changes, changes)

    async def ids(filter: str, order_by: str = "") -> list[str]:
        request = pb.ListTournamentsRequest(filter=filter, order_by=order_by)
        selection = ListSelection.of(request, fields.TOURNAMENT_FIELDS, ["tournaments"])
        visible = {"first-aaaaaa", "second-aaaaaa"}
        return [one.spec.name for one in await database.transact(queries.tournaments, visible, selection, 10)]

    assert await ids("") == ["second", "first"]
    assert await ids("labels:team/x") == ["second"]
    assert await ids("labels.team/x = red*") == ["second"]
    assert await ids("NOT labels.b = 1") == ["first"]
    assert await ids("name = s* AND state != FAILED") == ["second"]
    assert await ids("", "end_time desc, create_time") == ["second", "first"]
    first = await database.transact(find, TournamentRecord, "first-aaaaaa")
    assert first == replace(tournament("first", 1), running_seconds=1.5)
    found = await database.transact(saved_state.load_saved_state)
    assert found.steps == {"first-aaaaaa": 2**40 + 3}
    assert found.evaluation_epochs == {"first-aaaaaa": 3}
    assert [one.agent_id for one in found.works if isinstance(one, AgentRecord)] == [
        agent(0).agent_id,
        agent(1).agent_id,
    ]


def expire(transaction: Transaction) -> None:
    transaction.execute("UPDATE leadership SET expire_time = '-infinity'")


async def test_a_database_that_could_not_be_written_is_tried_without_leaving_anything_in_it(opened: Open) -> None:
    orchestrator = StateDatabase(await opened(state.DATABASE_FORMAT))
    orchestrator.fault = "the disk is full"
    await orchestrator.transact(state.occupy_space)  # as if the process had been killed within an earlier try
    await orchestrator.probe()
    assert orchestrator.fault == ""
    assert await orchestrator.transact(lambda transaction: transaction.execute("SELECT * FROM requests")) == []


async def test_an_earlier_leader_changes_nothing_after_a_takeover(postgresql: PostgresqlServer) -> None:
    location = DatabaseLocation.of(postgresql.new_url())
    earlier, old = await open_database(location, board.DATABASE_FORMAT, clock)
    await earlier.transact(insert, "a")
    await earlier.transact(expire)
    later, new = await open_database(location, board.DATABASE_FORMAT, clock)
    assert old
    assert new
    assert new.epoch == old.epoch + 1
    with pytest.raises(Unavailable, match="another replica of the leaderboard leads"):
        await earlier.transact(insert, "b")
    assert not old.is_valid()
    assert new.is_valid()
    earlier.close()
    assert new.is_valid()
    assert await later.transact(names) == ["a"]
    later.close()


async def test_a_takeover_waits_for_the_transaction_of_the_leader(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    database, _ = await open_database(DatabaseLocation.of(url), board.DATABASE_FORMAT, clock)
    await database.transact(expire)
    take = "UPDATE leaderboard.leadership SET epoch = epoch + 1"

    def attempt(transaction: Transaction) -> None:
        insert(transaction, "a")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            postgresql.execute(url, f"SET lock_timeout = '100ms'; {take}")

    await database.transact(attempt)
    postgresql.execute(url, take)
    with pytest.raises(Unavailable):
        await database.transact(insert, "b")
    database.close()
    assert postgresql.execute(url, "SELECT tournament_id FROM leaderboard.tournaments") == [("a",)]


async def test_a_leader_that_stops_within_a_transaction_is_replaced(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podrace.database.postgresql.IDLE_SECONDS", 0.5)
    location = DatabaseLocation.of(postgresql.new_url())
    never = LeaseTimes(lease=0.2, renew=3600.0)
    earlier, _ = await open_database(location, board.DATABASE_FORMAT, clock, times=never)
    stopped, continued = threading.Event(), threading.Event()

    def insert_after_a_pause(transaction: Transaction) -> None:
        insert(transaction, "lost")
        stopped.set()
        continued.wait()

    change = earlier.submit(insert_after_a_pause)
    await asyncio.to_thread(stopped.wait)
    async with asyncio.timeout(30):
        later, _ = await open_database(location, board.DATABASE_FORMAT, clock)
    await later.transact(insert, "kept")
    continued.set()
    with pytest.raises(Unavailable):
        await asyncio.wrap_future(change)
    assert await later.transact(names) == ["kept"]
    for one in (earlier, later):
        one.close()


async def test_a_standby_names_the_leader_and_takes_over_when_it_resigns(postgresql: PostgresqlServer) -> None:
    location = DatabaseLocation.of(postgresql.new_url())
    database, _ = await open_database(location, board.DATABASE_FORMAT, clock, address="10.0.0.7:50052")
    leaders: list[str] = []

    def on_standby(leader: str) -> None:
        leaders.append(leader)
        if len(leaders) == 1:
            database.close()

    standby, leadership = await open_database(location, board.DATABASE_FORMAT, clock, on_standby=on_standby)
    assert leaders[0] == "10.0.0.7:50052"
    assert leadership
    assert leadership.is_valid()
    standby.close()


async def test_a_lost_connection_ends_the_leadership(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    database, leadership = await open_database(DatabaseLocation.of(url), board.DATABASE_FORMAT, clock)
    assert leadership
    postgresql.execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid != pg_backend_pid()",
    )
    with pytest.raises(Unavailable):
        await database.transact(insert, "a")
    assert not leadership.is_valid()
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@host/name",
        "postgresql://host/name?password=secret",
        "postgresql://host/name?PassWord=secret",
        "postgresql://host/name?sslpassword=secret",
        "postgresql://user:se/secret@host/name",
        "postgresql://user:5/secret@host/name",
        "postgresql://user:5#secret@host/name",
        "postgresql:/user:secret@host/name",
        "POSTGRESQL:user:secret@host/name",
        "host=localhost user=me password=secret",
    ],
)
def test_a_password_in_the_database_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^database: ") as refused:
        DatabaseLocation.of(url)
    assert "secret" not in str(refused.value)


def test_a_password_that_others_can_read_is_reported(tmp_path: Path, log_lines: list[MutableMapping[str, Any]]) -> None:
    (file := tmp_path / "password").write_text("secret\n")
    location = DatabaseLocation.of("postgresql://user@host/name?sslmode=verify-full", str(file))
    file.chmod(0o640)
    assert read_password(location) == "secret"
    assert not log_lines
    file.chmod(0o644)
    assert read_password(location) == "secret"
    assert [(line["log_level"], line["mode"]) for line in log_lines] == [("warning", "0644")]
    assert "secret" not in str(log_lines)


def test_statements_are_translated() -> None:
    text = "SELECT value FROM json_each((SELECT labels FROM labels WHERE name = ? AND kind = '50%?')) WHERE key = ?"
    assert translated(text) == (
        "SELECT value FROM json_each_text(CAST((SELECT labels FROM labels WHERE name = %s AND kind = '50%%?') AS json))"
        " WHERE key = %s"
    )
