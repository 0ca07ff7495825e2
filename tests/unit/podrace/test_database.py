"""Tests the database of a service: durability, group commit, failed changes, locks, damage."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from released import HOMES, ReleasedHome, name

from leaderboard.store import schema as leaderboard_state
from orchestrator.state import database as orchestrator_state
from podrace.database import LARGEST_NUMBER, Database, Format, Transaction
from podrace.database.format import DatabaseDamaged
from podrace.database.sqlite import SqliteEngine
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, PodraceError, ResourceExhausted


def insert(transaction: Transaction, name: str) -> None:
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
    """Returns the COMMIT statements that SQLite has executed, as they come."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[call-overload]
        connection.set_trace_callback(lambda line: statements.append(line) if line == "COMMIT" else None)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return statements


async def test_an_acknowledged_change_survives_a_restart(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    await state.transact(insert, "a")
    state.close()
    state = Database.open(path, format, clock)
    assert await state.transact(names) == ["a"]
    state.close()


async def test_queued_changes_share_a_commit(path: Path, format: Format, count_commits: list[str]) -> None:
    state = Database.open(path, format, clock)
    occupation = Occupation()
    occupying = await occupation.begin(state)
    count_commits.clear()
    waiting = [asyncio.create_task(state.transact(insert, f"{number:02}")) for number in range(20)]
    await asyncio.sleep(0)
    occupation.released.set()
    await asyncio.gather(occupying, *waiting)
    assert count_commits == ["COMMIT"] * 2  # one for the first change and one for all others
    assert len(await state.transact(names)) == 20
    state.close()


async def test_only_the_failed_change_is_rolled_back(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)

    def fail(transaction: Transaction) -> None:
        insert(transaction, "never")
        raise NotFound("no")

    results = await asyncio.gather(
        state.transact(insert, "a"), state.transact(fail), state.transact(insert, "b"), return_exceptions=True
    )
    assert [type(result) for result in results] == [type(None), NotFound, type(None)]
    assert await state.transact(names) == ["a", "b"]
    state.close()


async def test_a_change_reads_the_changes_before_it(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    _, seen, _, last = await asyncio.gather(
        state.transact(insert, "a"), state.transact(names), state.transact(insert, "b"), state.transact(names)
    )
    assert (seen, last) == (["a"], ["a", "b"])
    state.close()


async def test_a_cancelled_change_is_skipped_and_stops_no_other(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    occupation = Occupation()
    occupying = await occupation.begin(state)
    cancelled = asyncio.create_task(state.transact(insert, "a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    occupation.released.set()
    await occupying
    assert await state.transact(names) == []
    state.close()


async def test_a_full_disk_is_reported_and_nothing_of_the_commit_is_kept(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    await state.transact(lambda transaction: transaction.execute("PRAGMA max_page_count = 20"))

    def fill(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES ('big', ?)", b"x" * 1_000_000)

    with pytest.raises(ResourceExhausted, match=r"state\.sqlite: .*full; free some space"):
        await state.transact(fill)
    assert await state.transact(names) == []
    state.close()


async def test_a_change_that_only_reads_succeeds_in_a_commit_with_one_that_finds_the_disk_full(
    path: Path, format: Format
) -> None:
    state = Database.open(path, format, clock)
    await state.transact(insert, "a")
    await state.transact(lambda transaction: transaction.execute("PRAGMA max_page_count = 20"))
    occupation = Occupation()
    occupying = await occupation.begin(state)

    def fill(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO tournaments (tournament_id, spec) VALUES ('big', ?)", b"x" * 1_000_000)

    batch = [asyncio.create_task(state.transact(change)) for change in (names, fill, names)]
    await asyncio.sleep(0)
    occupation.released.set()
    await occupying
    first, refused, last = await asyncio.gather(*batch, return_exceptions=True)
    assert (first, last) == (["a"], ["a"])
    assert isinstance(refused, ResourceExhausted)
    state.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_FULL", ResourceExhausted),
        ("SQLITE_IOERR_WRITE", ResourceExhausted),
        ("SQLITE_IOERR_FSYNC", ResourceExhausted),
        ("SQLITE_IOERR_READ", ResourceExhausted),
        ("SQLITE_READONLY_DBMOVED", ResourceExhausted),
        ("SQLITE_CORRUPT_INDEX", DatabaseDamaged),
        ("SQLITE_NOTADB", DatabaseDamaged),
    ],
)
async def test_an_error_of_the_disk_of_an_open_database_may_pass_and_is_no_damage(
    path: Path, format: Format, name: str, kind: type[PodraceError]
) -> None:
    engine = SqliteEngine.open(path, format)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    assert type(engine.translated(error)) is kind
    engine.close()


def damage_tables(path: Path) -> None:
    """Overwrites the pages of a file that is open, except the first."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


async def test_damage_that_is_found_later_is_no_answer_to_the_caller(path: Path, format: Format) -> None:
    first = Database.open(path, format, clock)
    for number in range(200):
        await first.transact(insert, f"tournament with a long name {number}")
    first.close()
    state = Database.open(path, format, clock)
    # Pages that SQLite has read already are not read again.
    await state.transact(lambda transaction: transaction.execute("PRAGMA shrink_memory"))
    damage_tables(path)
    with pytest.raises(DatabaseDamaged, match=r"is damaged: .*; restore a copy") as refusal:
        await state.transact(names)
    assert refusal.value.code == "RESOURCE_EXHAUSTED"
    state.close()


async def test_a_number_too_large_for_the_database_is_an_invalid_argument(path: Path, format: Format) -> None:
    state = Database.open(path, format, clock)
    with pytest.raises(InvalidArgument, match=rf"18446744073709551615 is too large: at most {LARGEST_NUMBER}"):
        await state.transact(lambda transaction: transaction.execute("SELECT ?", 2**64 - 1))
    state.close()


async def test_now_is_the_time_of_the_clock(path: Path, format: Format) -> None:
    state = Database.open(path, format, lambda: 123.5)
    assert await state.transact(lambda transaction: transaction.now) == 123.5
    state.close()


def test_a_second_instance_is_refused_while_the_first_is_open(
    path: Path, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podrace.database.sqlite.LOCK_WAIT_SECONDS", 0.0)
    first = Database.open(path, format, clock)
    with pytest.raises(FailedPrecondition, match=rf"state\.sqlite: another {format.owner} has it open; stop it"):
        Database.open(path, format, clock)
    first.close()
    Database.open(path, format, clock).close()


def overwrite_all(path: Path) -> None:
    path.write_bytes(b"these bytes are not a database at all!" * 200)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwrite_tables(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.long
@pytest.mark.parametrize("damage", [overwrite_all, truncate, overwrite_tables])
async def test_a_damaged_database_is_refused_with_one_line(
    path: Path, format: Format, damage: Callable[[Path], None]
) -> None:
    state = Database.open(path, format, clock)
    for number in range(200):
        await state.transact(insert, f"tournament with a long name {number}")
    state.close()
    damage(path)
    with pytest.raises(
        DataLoss, match=r"state\.sqlite: is damaged: .*; restore a copy or choose another file"
    ) as refusal:
        Database.open(path, format, clock)
    assert "\n" not in refusal.value.message


def test_the_database_of_another_program_is_not_changed(path: Path, format: Format) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FailedPrecondition, match=f"is not a database of the {format.owner}"):
        Database.open(path, format, clock)
    assert path.read_bytes()[100:] == before[100:]  # only the header's journal mode may differ


def test_the_database_of_another_service_is_refused(path: Path) -> None:
    Database.open(path, leaderboard_state.DATABASE_FORMAT, clock).close()
    with pytest.raises(FailedPrecondition, match="is not a database of the orchestrator; choose another file"):
        Database.open(path, orchestrator_state.DATABASE_FORMAT, clock)


def test_the_database_of_another_version_is_refused(path: Path, format: Format) -> None:
    Database.open(path, format, clock).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    message = rf"was written by another version \(format 99, this one reads {format.version}\)"
    with pytest.raises(FailedPrecondition, match=message):
        Database.open(path, format, clock)


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path, format: Format) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="cannot be created or opened"):
        Database.open(tmp_path / "file" / "state.sqlite", format, clock)


@pytest.fixture
def next_format(format: Format) -> Format:
    """The format of the service after two changes."""
    migrations = {
        format.version: "ALTER TABLE tournaments ADD COLUMN color TEXT; UPDATE tournaments SET color = 'red'",
        format.version + 1: "ALTER TABLE tournaments RENAME COLUMN color TO shade",
    }
    return replace(format, version=format.version + 2, migrations=migrations)


def shades(transaction: Transaction) -> list[tuple[str, str]]:
    return transaction.execute("SELECT tournament_id, shade FROM tournaments ORDER BY tournament_id")


async def test_a_file_of_an_earlier_version_is_migrated_step_by_step(
    path: Path, format: Format, next_format: Format
) -> None:
    state = Database.open(path, format, clock)
    await state.transact(insert, "a")
    state.close()
    for _ in range(2):
        state = Database.open(path, next_format, clock)
        assert await state.transact(shades) == [("a", "red")]
        state.close()
    with pytest.raises(FailedPrecondition, match="written by another version"):
        Database.open(path, format, clock)


def test_a_migration_that_fails_changes_nothing(path: Path, format: Format, next_format: Format) -> None:
    Database.open(path, format, clock).close()
    wrong = {format.version + 1: "ALTER TABLE absent ADD COLUMN x"}
    with pytest.raises(FailedPrecondition, match="no such table"):
        Database.open(path, replace(next_format, migrations={**next_format.migrations, **wrong}), clock)
    Database.open(path, format, clock).close()


def test_a_version_without_a_migration_is_refused(path: Path, format: Format, next_format: Format) -> None:
    Database.open(path, format, clock).close()
    last = format.version + 1
    with pytest.raises(FailedPrecondition, match="written by another version"):
        Database.open(path, replace(next_format, migrations={last: next_format.migrations[last]}), clock)


@pytest.mark.parametrize("archive", HOMES, ids=name)
async def test_the_databases_of_every_released_home_can_be_migrated(
    archive: Path, tmp_path: Path, format: Format, next_format: Format
) -> None:
    home = ReleasedHome(archive, tmp_path)
    state = Database.open(home.path / f"{format.owner}.sqlite", next_format, clock)
    assert len(await state.transact(shades)) == len({entry["tournament_id"] for entry in home.answers("ls")[0][1]})
    state.close()


async def test_a_copy_is_consistent_while_changes_continue(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podrace.database.sqlite.COPIED_PAGES", 1)
    state = Database.open(path, leaderboard_state.DATABASE_FORMAT, clock)

    def pair(transaction: Transaction, number: int) -> None:
        insert(transaction, f"a{number:04}")
        insert(transaction, f"b{number:04}")

    await asyncio.gather(*(state.transact(pair, number) for number in range(300)))
    copying = asyncio.create_task(state.copy_to(tmp_path / "copy.sqlite"))
    for number in range(300, 400):
        await state.transact(pair, number)
    await copying
    state.close()
    copy = Database.open(tmp_path / "copy.sqlite", leaderboard_state.DATABASE_FORMAT, clock)
    found = await copy.transact(names)
    copy.close()
    assert len(found) >= 600
    assert {one[1:] for one in found if one[0] == "a"} == {one[1:] for one in found if one[0] == "b"}


async def test_a_copy_that_cannot_be_written_is_an_error_and_changes_continue(path: Path, tmp_path: Path) -> None:
    state = Database.open(path, leaderboard_state.DATABASE_FORMAT, clock)
    with pytest.raises(sqlite3.OperationalError):
        await state.copy_to(tmp_path / "absent" / "copy.sqlite")
    await state.transact(insert, "a")
    state.close()
