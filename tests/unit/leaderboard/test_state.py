import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from leaderboard.state import LARGEST_NUMBER, State, Transaction
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted


def remember(transaction: Transaction, name: str) -> None:
    transaction.execute("INSERT INTO tournaments VALUES (?, ?)", name, b"")


def names(transaction: Transaction) -> list[str]:
    return [row[0] for row in transaction.execute("SELECT tournament_id FROM tournaments ORDER BY tournament_id")]


def clock() -> float:
    return 1.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "leaderboard.sqlite"


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


async def test_what_was_answered_is_there_after_a_restart(path: Path) -> None:
    state = State.open(path, clock)
    await state.transact(remember, "a")
    state.close()
    state = State.open(path, clock)
    assert await state.transact(names) == ["a"]
    state.close()


async def test_changes_that_wait_share_a_commit(path: Path, count_commits: list[str]) -> None:
    state = State.open(path, clock)
    busy, release = threading.Event(), threading.Event()

    def occupy(transaction: Transaction) -> None:
        busy.set()
        release.wait(10)

    occupying = asyncio.create_task(state.transact(occupy))
    await asyncio.to_thread(busy.wait, 10)
    count_commits.clear()
    waiting = [asyncio.create_task(state.transact(remember, f"{number:02}")) for number in range(20)]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(occupying, *waiting)
    assert count_commits == ["COMMIT"] * 2  # the one that was busy, and one for all the others
    assert len(await state.transact(names)) == 20
    state.close()


async def test_a_change_that_fails_is_undone_alone(path: Path) -> None:
    state = State.open(path, clock)

    def fail(transaction: Transaction) -> None:
        remember(transaction, "never")
        raise NotFound("no")

    results = await asyncio.gather(
        state.transact(remember, "a"), state.transact(fail), state.transact(remember, "b"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), NotFound, type(None)]
    assert await state.transact(names) == ["a", "b"]
    state.close()


async def test_a_change_sees_those_before_it(path: Path) -> None:
    state = State.open(path, clock)
    _, seen, _, last = await asyncio.gather(
        state.transact(remember, "a"), state.transact(names), state.transact(remember, "b"), state.transact(names)
    )
    assert (seen, last) == (["a"], ["a", "b"])
    state.close()


async def test_a_caller_that_goes_away_while_it_waits_changes_nothing_and_stops_nothing(path: Path) -> None:
    state = State.open(path, clock)
    release = threading.Event()
    occupying = asyncio.create_task(state.transact(lambda transaction: release.wait(10)))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(state.transact(remember, "a"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    release.set()
    await occupying
    assert await state.transact(names) == []
    state.close()


async def test_a_full_disk_is_told_and_nothing_of_the_commit_stays(path: Path) -> None:
    state = State.open(path, clock)
    await state.transact(lambda transaction: transaction.execute("PRAGMA max_page_count = 20"))

    def fill(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO tournaments VALUES ('big', ?)", b"x" * 1_000_000)

    with pytest.raises(ResourceExhausted, match=r"leaderboard\.sqlite: .*full; free some space"):
        await state.transact(fill)
    assert await state.transact(names) == []
    state.close()


async def test_a_number_too_large_for_the_database_is_the_callers_fault(path: Path) -> None:
    state = State.open(path, clock)
    with pytest.raises(InvalidArgument, match=rf"18446744073709551615 is too large: at most {LARGEST_NUMBER}"):
        await state.transact(lambda transaction: transaction.execute("SELECT ?", 2**64 - 1))
    state.close()


async def test_now_is_the_clocks(path: Path) -> None:
    state = State.open(path, lambda: 123.5)
    assert await state.transact(lambda transaction: transaction.now) == 123.5
    state.close()


def test_a_second_instance_is_refused_while_the_first_lives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaderboard.state.LOCK_WAIT_SECONDS", 0.0)
    first = State.open(path, clock)
    with pytest.raises(
        FailedPrecondition, match=r"leaderboard\.sqlite: another leaderboard has it open; stop that one"
    ):
        State.open(path, clock)
    first.close()
    State.open(path, clock).close()


def overwrite_all(path: Path) -> None:
    path.write_bytes(b"this is no database, and never was one" * 200)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwrite_tables(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [overwrite_all, truncate, overwrite_tables])
async def test_a_damaged_database_is_refused_with_one_line(path: Path, damage: Callable[[Path], None]) -> None:
    state = State.open(path, clock)
    for number in range(200):
        await state.transact(remember, f"tournament with a long name {number}")
    state.close()
    damage(path)
    with pytest.raises(
        DataLoss, match=r"leaderboard\.sqlite: is damaged: .*; restore a copy or choose another file"
    ) as told:
        State.open(path, clock)
    assert "\n" not in told.value.message


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FailedPrecondition, match="is not a leaderboard's"):
        State.open(path, clock)
    assert path.read_bytes()[100:] == before[100:]  # only the header's journal mode may differ


def test_the_database_of_another_version_is_refused(path: Path) -> None:
    State.open(path, clock).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FailedPrecondition, match="was written by another version"):
        State.open(path, clock)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="its folder cannot be made"):
        State.open(tmp_path / "file" / "leaderboard.sqlite", clock)
