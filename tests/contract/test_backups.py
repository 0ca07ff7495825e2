"""Backups of databases, on every store: a copy is complete or absent, and only the service that started last writes."""

import asyncio
import contextlib
import functools
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrace.backup.config import BackupConfig
from podrace.backup.copies import HOUR_SECONDS, REQUESTED_DAYS, Backup, Backups
from podrace.backup.database import BackedUpDatabase
from podrace.checkpoint_store.collect import collect
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, DatabaseLocation, Format, Transaction
from podrace.errors import DataLoss, FailedPrecondition, ResourceExhausted, Unavailable

FORMAT = Format("orchestrator", 7, 1, "CREATE TABLE numbers (number INTEGER, text TEXT)")
NOW = 1_700_000_000.0


def insert(transaction: Transaction, number: int, size: int = 10) -> None:
    transaction.execute("INSERT INTO numbers VALUES (?, ?)", number, "x" * size)


def numbers(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return [number for (number,) in opened.execute("SELECT number FROM numbers ORDER BY number")]


def set_restored_epoch(transaction: Transaction, epoch: int) -> None:
    transaction.execute("UPDATE identity SET restored_epoch = ?", epoch)


def epochs(path: Path) -> tuple[int, int]:
    """Returns the epochs with which a database is backed up and was restored."""
    with contextlib.closing(sqlite3.connect(path)) as opened:
        backup, restored = opened.execute("SELECT backup_epoch, restored_epoch FROM identity").fetchone()
        return int(backup), int(restored)


def identity(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return str(opened.execute("SELECT database_id FROM identity").fetchone()[0])


@pytest.fixture
def backups(store: CheckpointStore) -> Backups:
    return Backups(store, "main", "orchestrator")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(tmp_path / "state.sqlite", FORMAT, lambda: NOW)
    yield opened
    opened.close()


@pytest.fixture
async def copy(database: Database, tmp_path: Path) -> Path:
    await database.transact(insert, 1)
    await database.copy_to(tmp_path / "copy.sqlite")
    return tmp_path / "copy.sqlite"


async def test_a_restored_file_has_what_was_copied(backups: Backups, copy: Path, tmp_path: Path) -> None:
    backups.claim(1)
    written = backups.write(copy, 1, identity(copy), NOW, hours=0)
    assert backups.restore(tmp_path / "restored.sqlite") == written == backups.newest()
    assert numbers(tmp_path / "restored.sqlite") == [1]
    assert not list(tmp_path.glob("*.restoring"))


async def test_each_restoration_gets_a_higher_epoch_also_with_a_new_name_of_the_backups(
    store: CheckpointStore, database: Database, tmp_path: Path
) -> None:
    """Epochs of a new name begin at 1, but work must not get a lease epoch that was given before."""
    await database.transact(set_restored_epoch, 41)
    await database.copy_to(tmp_path / "copy.sqlite")
    renamed = Backups(store, "renamed", "orchestrator")
    renamed.claim(1)
    renamed.write(tmp_path / "copy.sqlite", 1, identity(tmp_path / "copy.sqlite"), NOW, hours=0)
    restored = []
    for number in range(3):
        renamed.restore(tmp_path / f"restored-{number}.sqlite")
        restored.append(epochs(tmp_path / f"restored-{number}.sqlite"))
        assert restored[-1] == (renamed.epoch(), renamed.epoch())
    assert 41 < restored[0][1] < restored[1][1] < restored[2][1]


async def test_without_a_backup_nothing_is_restored(backups: Backups, tmp_path: Path) -> None:
    assert backups.restore(tmp_path / "restored.sqlite") is None
    assert not (tmp_path / "restored.sqlite").exists()


async def test_a_service_with_an_older_epoch_cannot_replace_a_backup(backups: Backups, copy: Path) -> None:
    backups.claim(1)
    first = backups.write(copy, 1, identity(copy), NOW, hours=0)
    backups.claim(2)
    with pytest.raises(FailedPrecondition, match="another one has started since") as raised:
        backups.write(copy, 1, identity(copy), NOW + 1, hours=0)
    assert raised.value.reason == "ERROR_REASON_STALE_EPOCH"
    assert backups.newest() == first


async def test_a_backup_of_another_database_is_not_replaced(backups: Backups, copy: Path) -> None:
    backups.claim(1)
    first = backups.write(copy, 1, identity(copy), NOW, hours=0)
    with pytest.raises(FailedPrecondition, match="has backups of another database"):
        backups.write(copy, 1, "another", NOW + 1, hours=0)
    assert backups.newest() == first


async def test_a_damaged_newest_backup_gives_way_to_the_one_before(
    backups: Backups, store: CheckpointStore, database: Database, copy: Path, tmp_path: Path
) -> None:
    backups.claim(1)
    first = backups.write(copy, 1, identity(copy), NOW, hours=0)
    await database.transact(insert, 2)
    await database.copy_to(tmp_path / "later.sqlite")
    second = backups.write(tmp_path / "later.sqlite", 1, identity(copy), NOW + 1, hours=0)
    view = store.within("podrace-backup-main-orchestrator")
    assert view.delete_object(second.manifest_digest, -HOUR_SECONDS)
    assert backups.restore(tmp_path / "restored.sqlite") == first
    assert view.delete_object(first.manifest_digest, -HOUR_SECONDS)
    with pytest.raises(DataLoss):
        backups.restore(tmp_path / "again.sqlite")


async def open_state(path: Path, store: CheckpointStore, period_seconds: float = 60.0) -> BackedUpDatabase:
    config = BackupConfig(period_seconds=period_seconds)
    return await BackedUpDatabase.open(DatabaseLocation(path), FORMAT, lambda: NOW, config, store.uri)


def lose(store: CheckpointStore, backup: Backup) -> None:
    """Removes the manifest of a backup, as a damaged disk does."""
    assert store.within("podrace-backup-main-orchestrator").delete_object(backup.manifest_digest, -math.inf)


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_service_starts_and_makes_backups_although_the_newest_ones_are_damaged(
    backups: Backups, store: CheckpointStore, tmp_path: Path, lost: int
) -> None:
    path = tmp_path / "volume" / "state.sqlite"
    first = await open_state(path, store)
    made = [await first.back_up() for _ in range(3)]
    first.database.close()
    for backup in made[-lost:]:
        lose(store, backup)
    again = await open_state(path, store)
    assert again.restored is None
    newest = await again.back_up()
    again.database.close()
    assert backups.newest() == newest
    assert backups.restore(tmp_path / "restored.sqlite") == newest


async def two_backups_of_which_the_newest_is_lost(path: Path, store: CheckpointStore) -> list[Backup]:
    first = await open_state(path, store)
    made = [await first.back_up() for _ in range(2)]
    first.database.close()
    lose(store, made[1])
    return made


async def test_a_service_without_its_file_starts_from_the_backup_before_a_damaged_one(
    store: CheckpointStore, tmp_path: Path
) -> None:
    made = await two_backups_of_which_the_newest_is_lost(tmp_path / "a" / "state.sqlite", store)
    second = await open_state(tmp_path / "b" / "state.sqlite", store)
    assert second.restored == made[0]
    assert (await second.back_up()).epoch > made[0].epoch
    second.database.close()
    with pytest.raises(FailedPrecondition, match="is out of date"):
        await open_state(tmp_path / "a" / "state.sqlite", store)


async def test_without_a_backup_that_can_be_read_only_a_new_file_is_refused(
    store: CheckpointStore, tmp_path: Path
) -> None:
    """A service whose state is only in lost backups must not start without it."""
    first = await open_state(tmp_path / "a" / "state.sqlite", store)
    made = [await first.back_up() for _ in range(2)]
    first.database.close()
    for backup in made:
        lose(store, backup)
    with pytest.raises(DataLoss, match="restore an older one"):
        await open_state(tmp_path / "b" / "state.sqlite", store)
    Database.open(tmp_path / "b" / "state.sqlite", FORMAT, lambda: NOW).close()
    with pytest.raises(FailedPrecondition, match="is out of date"):
        await open_state(tmp_path / "b" / "state.sqlite", store)
    again = await open_state(tmp_path / "a" / "state.sqlite", store)
    await again.back_up()
    again.database.close()


def fill(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the store full; it can still be read."""

    def refuse(*arguments: object) -> None:
        raise ResourceExhausted("the store is full")

    for name in ("swap_pointer", "put_object"):
        monkeypatch.setattr(type(store), name, refuse)


def disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(uri: str, *, deadline_seconds: float, **arguments: object) -> None:
        assert deadline_seconds <= 10, "pods wait for the service"
        raise Unavailable("the store cannot be reached")

    monkeypatch.setattr("podrace.backup.database.open_store", refuse)


@pytest.mark.parametrize("fault", ["full", "down"])
async def test_a_service_with_its_file_starts_while_the_store_cannot_be_used_and_makes_backups_afterwards(
    backups: Backups,
    store: CheckpointStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    path = tmp_path / "volume" / "state.sqlite"
    (await open_state(path, store)).database.close()
    with monkeypatch.context() as broken:
        fill(store, broken) if fault == "full" else disconnect(broken)
        opened = await open_state(path, store)
        await opened.database.transact(insert, 1)
    written = await opened.back_up()
    opened.database.close()
    assert backups.newest() == written
    assert written.epoch == backups.epoch()


async def test_a_new_service_starts_only_when_the_store_says_that_there_is_no_backup(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str, **arguments: object) -> None:
        raise Unavailable("the store cannot be reached")

    monkeypatch.setattr("podrace.backup.database.open_store", refuse)
    with pytest.raises(Unavailable):
        await open_state(tmp_path / "volume" / "state.sqlite", store)
    assert not (tmp_path / "volume").exists()


async def test_a_file_that_is_out_of_date_is_refused_while_the_store_is_full(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await open_state(tmp_path / "old" / "state.sqlite", store)
    await first.back_up()
    first.database.close()
    (await open_state(tmp_path / "new" / "state.sqlite", store)).database.close()
    fill(store, monkeypatch)
    with pytest.raises(FailedPrecondition, match="is out of date"):
        await open_state(tmp_path / "old" / "state.sqlite", store)


async def test_a_service_that_started_while_the_store_was_full_does_not_fence_its_successor(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old" / "state.sqlite"
    first = await open_state(path, store)
    await first.back_up()
    first.database.close()
    with monkeypatch.context() as broken:
        fill(store, broken)
        again = await open_state(path, store)
    successor = await open_state(tmp_path / "new" / "state.sqlite", store)
    with pytest.raises(FailedPrecondition, match="is out of date"):
        await again.back_up()
    await successor.back_up()
    for opened in (again, successor):
        opened.database.close()


async def test_a_damaged_backup_does_not_hide_that_the_database_is_another_one(
    store: CheckpointStore, tmp_path: Path
) -> None:
    await two_backups_of_which_the_newest_is_lost(tmp_path / "a" / "state.sqlite", store)
    Database.open(tmp_path / "b" / "state.sqlite", FORMAT, lambda: NOW).close()
    with pytest.raises(FailedPrecondition, match="has backups of another database"):
        await open_state(tmp_path / "b" / "state.sqlite", store)


async def test_the_newest_two_and_one_of_each_hour_survive_the_garbage_collection(
    backups: Backups, store: CheckpointStore, database: Database, copy: Path, tmp_path: Path
) -> None:
    backups.claim(1)
    for quarter in range(16):
        await database.transact(insert, quarter)
        later = tmp_path / f"{quarter}.sqlite"
        await database.copy_to(later)
        backups.write(later, 1, identity(copy), NOW + quarter * HOUR_SECONDS / 4, hours=3)
    collect(store, [], -HOUR_SECONDS)
    kept = sorted((backup.time - NOW) / HOUR_SECONDS for backup in backups.list())
    hours = [int((NOW + hour * HOUR_SECONDS) // HOUR_SECONDS) for hour in kept]
    assert kept[-2:] == [3.5, 3.75]
    assert len(set(hours)) == 3
    for number, backup in enumerate(backups.list()):
        backups.restore(tmp_path / f"restored-{number}.sqlite", backup.manifest_digest)


def test_backups_of_hours_that_are_no_longer_kept_are_deleted(backups: Backups, copy: Path) -> None:
    backups.claim(1)
    write = functools.partial(backups.write, copy, 1, identity(copy))
    write(NOW, hours=24, requested=True)
    for hour in range(1, 24):
        write(NOW + hour * HOUR_SECONDS, hours=24)
    for hour in range(24, 28):
        write(NOW + hour * HOUR_SECONDS, hours=3)
    assert [round((backup.time - NOW) / HOUR_SECONDS) for backup in backups.list()] == [27, 26, 25, 0]


@pytest.mark.parametrize("folder", ["run#3", "50%25", "a?b"])
def test_a_backup_is_restored_in_a_folder_of_any_name(
    backups: Backups, copy: Path, tmp_path: Path, folder: str
) -> None:
    backups.claim(1)
    made = backups.write(copy, 1, identity(copy), NOW, hours=0)
    assert backups.restore(tmp_path / folder / "state.sqlite") == made


async def test_a_backup_that_a_person_asked_for_is_kept_for_thirty_days(
    backups: Backups, store: CheckpointStore, copy: Path, tmp_path: Path
) -> None:
    """Later backups of the same hour replace the others."""
    backups.claim(1)
    write = functools.partial(backups.write, copy, 1, identity(copy), hours=1)
    start = NOW - NOW % HOUR_SECONDS
    for seconds in (0, 60, 120, 180, 240, 300):
        write(start + seconds, requested=seconds in (60, 120))
    collect(store, [], -math.inf)
    assert [backup.time - start for backup in backups.list()] == [300, 240, 120, 60, 0]
    oldest = backups.list()[-2]
    assert backups.restore(tmp_path / "restored.sqlite", oldest.manifest_digest) == oldest
    later = start + REQUESTED_DAYS * 24 * HOUR_SECONDS + 90
    backups.claim(9)
    backups.write(copy, 9, identity(copy), later, hours=0, requested=True)
    collect(store, [], -math.inf)
    assert [backup.time for backup in backups.list()] == [later, start + 300, start + 120, start]


async def test_backups_of_a_name_do_not_count_as_those_of_a_name_that_begins_alike(
    store: CheckpointStore, copy: Path
) -> None:
    longer = Backups(store, "main-orchestrator", "orchestrator")
    longer.claim(1)
    longer.write(copy, 1, identity(copy), NOW, hours=1, requested=True)
    assert Backups(store, "main", "orchestrator").list() == []


async def test_pieces_that_did_not_change_are_not_stored_again(
    backups: Backups,
    store: CheckpointStore,
    database: Database,
    copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("podrace.backup.copies.PIECE_BYTES", 4096)
    for number in range(200):
        await database.transact(insert, number, 1000)
    await database.copy_to(tmp_path / "large.sqlite")
    backups.claim(1)
    backups.write(tmp_path / "large.sqlite", 1, identity(copy), NOW, hours=0)
    before = sum(1 for _ in store.list_objects())
    await database.transact(insert, 1000)
    await database.copy_to(tmp_path / "larger.sqlite")
    backups.write(tmp_path / "larger.sqlite", 1, identity(copy), NOW + 1, hours=0)
    assert before > 50
    assert sum(1 for _ in store.list_objects()) < before + 12
    backups.restore(tmp_path / "restored.sqlite")
    assert numbers(tmp_path / "restored.sqlite") == numbers(tmp_path / "larger.sqlite")


async def test_a_service_without_its_file_starts_from_the_newest_backup(store: CheckpointStore, tmp_path: Path) -> None:
    path, config = tmp_path / "volume" / "state.sqlite", BackupConfig(period_seconds=0.05)
    first = await BackedUpDatabase.open(DatabaseLocation(path), FORMAT, lambda: NOW, config, store.uri)
    running = asyncio.create_task(first.run())
    await first.database.transact(insert, 1)
    while not Backups(store, "main", "orchestrator").newest():
        await asyncio.sleep(0.01)
    await first.back_up()
    running.cancel()
    await asyncio.wait([running])
    first.database.close()
    for file in path.parent.iterdir():
        file.unlink()
    second = await BackedUpDatabase.open(DatabaseLocation(path), FORMAT, lambda: NOW, config, store.uri)
    assert second.restored is not None
    assert await second.database.transact(lambda opened: opened.execute("SELECT number FROM numbers")) == [(1,)]
    query = "SELECT backup_epoch, restored_epoch FROM identity"
    assert await second.database.transact(lambda opened: opened.execute(query)) == [(4, 3)]
    second.database.close()


async def test_a_file_whose_successor_was_restored_elsewhere_is_not_used(
    store: CheckpointStore, tmp_path: Path
) -> None:
    config = BackupConfig(period_seconds=60.0)
    old, new = tmp_path / "old" / "state.sqlite", tmp_path / "new" / "state.sqlite"
    first = await BackedUpDatabase.open(DatabaseLocation(old), FORMAT, lambda: NOW, config, store.uri)
    await first.back_up()
    first.database.close()
    second = await BackedUpDatabase.open(DatabaseLocation(new), FORMAT, lambda: NOW, config, store.uri)
    with pytest.raises(FailedPrecondition, match="is out of date"):
        await BackedUpDatabase.open(DatabaseLocation(old), FORMAT, lambda: NOW, config, store.uri)
    second.database.close()
    third = await BackedUpDatabase.open(DatabaseLocation(new), FORMAT, lambda: NOW, config, store.uri)
    assert third.restored is None
    await third.back_up()
    third.database.close()


async def test_a_new_database_is_refused_if_the_store_has_backups_of_another(
    store: CheckpointStore, tmp_path: Path
) -> None:
    config = BackupConfig(period_seconds=60.0)
    first = await BackedUpDatabase.open(
        DatabaseLocation(tmp_path / "a" / "state.sqlite"), FORMAT, lambda: NOW, config, store.uri
    )
    await first.back_up()
    first.database.close()
    Database.open(tmp_path / "b" / "state.sqlite", FORMAT, lambda: NOW).close()
    with pytest.raises(FailedPrecondition, match="has backups of another database"):
        await BackedUpDatabase.open(
            DatabaseLocation(tmp_path / "b" / "state.sqlite"), FORMAT, lambda: NOW, config, store.uri
        )
