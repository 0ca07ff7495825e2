import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from leaderboard.store import schema as leaderboard_state
from orchestrator.state import database as orchestrator_state
from podrace.database import LARGEST_NUMBER, Database, Format, Transaction
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted


def remember(transaction: Transaction, name: str) -> None:
    transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES (?, ?)", name, b"")


def names(transaction: Transaction) -> list[str]:
    return [row[0] for row in transaction.execute("SELECT tournament_id FROM tournaments ORDER BY tournament_id")]


def clock() -> float:
    return 1.0


class Occupation:
    """A change that keeps the database busy until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self, transaction: Transaction) -> None:
        self.begun.set()
        self.released.wait(10)

    async def begin(self, state: Database) -> asyncio.Task[None]:
        task = asyncio.create_task(state.transact(self))
        assert await asyncio.to_thread(self.begun.wait, 10)
        return task


@pytest.fixture(
    params=[leaderboard_state.DATABASE_FORMAT, orchestrator_state.DATABASE_FORMAT], ids=lambda format: format.owner
)
def format(request: pytest.FixtureRequest) -> Format:
    found: Format = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "state.sqlite"


@pytest.fixture
def count_commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that end transactions, as SQLite sees them."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[call-overload]
        connection.set_trace_callback(lambda line: statements.append(line) if line == "COMMIT" else None)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return statements


async def test_what_was_answered_is_there_after_a_restart(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    await state.transact(remember, "a")
    state.close()
    state = Database.open(path, format, clock)
    assert await state.transact(names) == ["a"]
    state.close()


async def test_changes_that_wait_share_a_commit(path: Path, format: Format, count_commits: list[str]) -> None:
    state = Database.open(path, format, clock)
    occupation = Occupation()
    occupying = await occupation.begin(state)
    count_commits.clear()
    waiting = [asyncio.create_task(state.transact(remember, f"{number:02}")) for number in range(20)]
    await asyncio.sleep(0)
    occupation.released.set()
    await asyncio.gather(occupying, *waiting)
    assert count_commits == ["COMMIT"] * 2  # the one that was busy, and one for all the others
    assert len(await state.transact(names)) == 20
    state.close()


async def test_a_change_that_fails_is_undone_alone(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)

    def fail(transaction: Transaction) -> None:
        remember(transaction, "never")
        raise NotFound("no")

    results = await asyncio.gather(
        state.transact(remember, "a"), state.transact(fail), state.transact(remember, "b"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), NotFound, type(None)]
    assert await state.transact(names) == ["a", "b"]
    state.close()


async def test_a_change_sees_those_before_it(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    _, seen, _, last = await asyncio.gather(
        state.transact(remember, "a"), state.transact(names), state.transact(remember, "b"), state.transact(names)
    )
    assert (seen, last) == (["a"], ["a", "b"])
    state.close()


async def test_a_caller_that_goes_away_while_it_waits_changes_nothing_and_stops_nothing(
    path: Path, format: Format
) -> None:
    state = Database.open(path, format, clock)
    occupation = Occupation()
    occupying = await occupation.begin(state)
    leaving = asyncio.create_task(state.transact(remember, "a"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    occupation.released.set()
    await occupying
    assert await state.transact(names) == []
    state.close()


async def test_a_full_disk_is_told_and_nothing_of_the_commit_stays(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    await state.transact(lambda transaction: transaction.execute("PRAGMA max_page_count = 20"))

    def fill(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES ('big', ?)", b"x" * 1_000_000)

    with pytest.raises(ResourceExhausted, match=r"state\.sqlite: .*full; free some space"):
        await state.transact(fill)
    assert await state.transact(names) == []
    state.close()


async def test_a_number_too_large_for_the_database_is_the_callers_fault(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    with pytest.raises(InvalidArgument, match=rf"18446744073709551615 is too large: at most {LARGEST_NUMBER}"):
        await state.transact(lambda transaction: transaction.execute("SELECT ?", 2**64 - 1))
    state.close()


async def test_now_is_the_clocks(path: Path, format: Format) -> None:
    state = Database.open(path, format, lambda: 123.5)
    assert await state.transact(lambda transaction: transaction.now) == 123.5
    state.close()


def test_a_second_instance_is_refused_while_the_first_lives(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podrace.database.LOCK_WAIT_SECONDS", 0.0)
    first = Database.open(path, format, clock)
    with pytest.raises(FailedPrecondition, match=rf"state\.sqlite: another {format.owner} has it open; stop that one"):
        Database.open(path, format, clock)
    first.close()
    Database.open(path, format, clock).close()


def overwrite_all(path: Path) -> None:
    path.write_bytes(b"this is no database, and never was one" * 200)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwrite_tables(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [overwrite_all, truncate, overwrite_tables])
async def test_a_damaged_database_is_refused_with_one_line(
    path: Path, format: Format, damage: Callable[[Path], None]
) -> None:
    state = Database.open(path, format, clock)
    for number in range(200):
        await state.transact(remember, f"tournament with a long name {number}")
    state.close()
    damage(path)
    with pytest.raises(DataLoss, match=r"state\.sqlite: is damaged: .*; restore a copy or choose another file") as told:
        Database.open(path, format, clock)
    assert "\n" not in told.value.message


def test_the_database_of_another_program_is_left_alone(path: Path, format: Format) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FailedPrecondition, match=f"is not the {format.owner}'s"):
        Database.open(path, format, clock)
    assert path.read_bytes()[100:] == before[100:]  # only the header's journal mode may differ


def test_the_database_of_another_service_is_refused(path: Path) -> None:
    Database.open(path, leaderboard_state.DATABASE_FORMAT, clock).close()
    with pytest.raises(FailedPrecondition, match="is not the orchestrator's; choose another file"):
        Database.open(path, orchestrator_state.DATABASE_FORMAT, clock)


def test_the_database_of_another_version_is_refused(path: Path, format: Format) -> None:
    Database.open(path, format, clock).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    told = rf"was written by another version \(format 99, this one reads {format.version}\)"
    with pytest.raises(FailedPrecondition, match=told):
        Database.open(path, format, clock)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, format: Format) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="its folder cannot be made"):
        Database.open(tmp_path / "file" / "state.sqlite", format, clock)
