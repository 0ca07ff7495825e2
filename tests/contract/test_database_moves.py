"""A database moves from a file to a server completely or not at all, and no service opens the file afterwards."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import json_schemas
import pytest
from postgresql_server import PostgresqlServer
from released import HOMES, ReleasedHome

from leaderboard.store import schema as board
from orchestrator.state import database as state
from podrace.cli import main
from podrace.database import Database, DatabaseLocation, Format, moving, open_database
from podrace.database.moving import move, take_back
from podrace.errors import FailedPrecondition, NotFound

FORMATS = pytest.mark.parametrize("format", [board.DATABASE_FORMAT, state.DATABASE_FORMAT], ids=lambda one: one.owner)


def clock() -> float:
    return 1.0


@pytest.fixture
def path(tmp_path: Path, format: Format) -> Path:
    """The database of a service with a row in every table."""
    file = tmp_path / f"{format.owner}.sqlite"
    Database.open(file, format, clock).close()
    with contextlib.closing(sqlite3.connect(file)) as opened:
        for table, columns in tables(opened).items():
            for number in (1, 2, 3):
                values = [1 if name == "one" else sample(kind, name, number) for name, kind in columns.items()]
                places = ", ".join("?" * len(values))
                opened.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", values)
        opened.execute("UPDATE identity SET database_id = 'id', backup_epoch = 4, restored_epoch = 2")
        if format.owner == "orchestrator":
            opened.execute("DELETE FROM events WHERE sequence = 3")
        opened.commit()
    return file


def tables(opened: sqlite3.Connection) -> dict[str, dict[str, str]]:
    """Returns the types of the columns of all tables."""
    listed = opened.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {name: {row[1]: row[2] for row in opened.execute(f"PRAGMA table_info({name})")} for (name,) in listed}


def sample(kind: str, name: str, number: int) -> Any:
    if kind == "INTEGER":
        return number if number != 2 or "primary" in name else 2**40 + number
    return {"REAL": number + 0.1, "BLOB": bytes([0, 255, 92, number]), "TEXT": f"\u00e9\\\t\n'{number}"}[kind]


def content(path: Path) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return {
            name: sorted(map(repr, opened.execute(f"SELECT {', '.join(columns)} FROM {name}")))
            for name, columns in tables(opened).items()
        }


def content_there(server: PostgresqlServer, url: str, path: Path, format: Format) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return {
            name: sorted(map(repr, server.execute(url, f"SELECT {', '.join(columns)} FROM {format.owner}.{name}")))
            for name, columns in tables(opened).items()
        }


@FORMATS
async def test_every_row_is_moved_and_the_service_continues_on_the_server(
    postgresql: PostgresqlServer, path: Path, format: Format
) -> None:
    url, before = postgresql.new_url(), content(path)
    moved = await move(path, url, "")
    assert (moved.service, moved.database_id, moved.earlier) == (format.owner, "id", False)
    assert {**moved.rows, "identity": 1} == {name: len(rows) for name, rows in before.items()}
    database, leadership = await open_database(DatabaseLocation.of(url), format, clock)
    assert leadership
    database.close()
    assert content_there(postgresql, url, path, format) == before
    with pytest.raises(FailedPrecondition, match="was moved to a server of PostgreSQL"):
        Database.open(path, format, clock)


async def test_numbers_and_the_order_of_rows_continue(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    path, url = tmp_path / "o.sqlite", postgresql.new_url()
    statement = "INSERT INTO events (time, kind, message) VALUES (?, 'k', 'm') RETURNING sequence"

    def record(transaction: Any) -> int:
        for name in ("b", "a"):
            transaction.execute("INSERT INTO ownerships VALUES (?, 'o', '') ON CONFLICT DO NOTHING", name)
        return int(transaction.execute(statement, 1.0)[0][0])

    def last(transaction: Any) -> list[str]:
        transaction.execute("INSERT INTO ownerships VALUES ('0', 'o', '')")
        return [row[0] for row in transaction.execute("SELECT tournament_id FROM ownerships ORDER BY rowid")]

    database = Database.open(path, state.DATABASE_FORMAT, clock)
    assert [await database.transact(record) for _ in range(3)] == [1, 2, 3]
    await database.transact(lambda transaction: transaction.execute("DELETE FROM events WHERE sequence > 1"))
    database.close()
    await move(path, url, "")
    database, _ = await open_database(DatabaseLocation.of(url), state.DATABASE_FORMAT, clock)
    assert await database.transact(record) == 4, "the number of a deleted event is not given again"
    assert await database.transact(last) == ["b", "a", "0"]
    database.close()


@pytest.mark.parametrize("format", [board.DATABASE_FORMAT], ids=["leaderboard"])
async def test_a_move_that_was_done_can_be_repeated(postgresql: PostgresqlServer, path: Path, format: Format) -> None:
    url = postgresql.new_url()
    first = await move(path, url, "")
    again = await move(path, url, "")
    assert again.earlier
    assert again.rows == first.rows
    assert take_back(path) == "leaderboard"
    Database.open(path, format, clock).close()
    with pytest.raises(FailedPrecondition, match="was not moved"):
        take_back(path)


@pytest.mark.parametrize("format", [board.DATABASE_FORMAT], ids=["leaderboard"])
def test_the_command_prints_its_published_shape(
    postgresql: PostgresqlServer, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = postgresql.new_url()
    for repeated in (False, True):
        assert main(["migrate", str(path), url, "--json"]) == 0
        moved = json.loads(capfd.readouterr().out)
        json_schemas.check(["migrate"], moved)
        assert moved["moved_before"] == repeated
        assert moved["rows"]


class Killed(BaseException):
    """Stands for the death of the process."""


def die(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("where", "marked"),
    [("_Filling._copy", False), ("_Source.mark", False), ("PostgresqlEngine.commit", True)],
)
@pytest.mark.parametrize("format", [state.DATABASE_FORMAT], ids=["orchestrator"])
async def test_an_interrupted_move_leaves_nothing_on_the_server_and_can_be_repeated(
    postgresql: PostgresqlServer, path: Path, format: Format, where: str, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, before = postgresql.new_url(), content(path)
    owner: Any = moving
    *parts, name = where.split(".")
    for part in parts:
        owner = getattr(owner, part)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, die)
        with pytest.raises(Killed):
            await move(path, url, "")
    found = postgresql.execute(url, "SELECT count(*) FROM information_schema.tables WHERE table_name = 'events'")
    assert found == [(0,)]
    if marked:
        with pytest.raises(FailedPrecondition, match="was moved"):
            Database.open(path, format, clock)
    else:
        Database.open(path, format, clock).close()
    assert not (await move(path, url, "")).earlier
    assert content_there(postgresql, url, path, format) == before


@pytest.mark.parametrize("format", [board.DATABASE_FORMAT], ids=["leaderboard"])
async def test_a_move_is_refused_while_a_service_runs_and_to_a_database_with_other_records(
    postgresql: PostgresqlServer, path: Path, format: Format, tmp_path: Path
) -> None:
    url, before = postgresql.new_url(), content(path)
    running = Database.open(path, format, clock)
    with pytest.raises(FailedPrecondition, match="its service has it open"):
        await move(path, url, "")
    running.close()
    there, _ = await open_database(DatabaseLocation.of(url), format, clock, address="10.0.0.7/1")
    with pytest.raises(FailedPrecondition, match=r"leaderboard 10\.0\.0\.7/1 uses it"):
        await move(path, url, "")
    await there.transact(lambda transaction: transaction.execute("INSERT INTO tournaments VALUES ('other', ?)", b""))
    there.close()
    with pytest.raises(FailedPrecondition, match="has records of the leaderboard already"):
        await move(path, url, "")
    assert content(path) == before
    Database.open(path, format, clock).close()
    with pytest.raises(NotFound):
        await move(tmp_path / "absent.sqlite", url, "")
    (tmp_path / "other.sqlite").write_bytes(b"")
    with pytest.raises(FailedPrecondition, match="is none of the orchestrator or the leaderboard"):
        await move(tmp_path / "other.sqlite", url, "")


@FORMATS
@pytest.mark.parametrize("archive", HOMES, ids=lambda one: one.stem)
async def test_a_home_of_a_released_version_moves(
    postgresql: PostgresqlServer, archive: Path, format: Format, tmp_path: Path
) -> None:
    path, url = ReleasedHome(archive, tmp_path).path / f"{format.owner}.sqlite", postgresql.new_url()
    Database.open(path, format, clock).close()
    before = content(path)
    await move(path, url, "")
    database, _ = await open_database(DatabaseLocation.of(url), format, clock)
    database.close()
    assert content_there(postgresql, url, path, format) == before
