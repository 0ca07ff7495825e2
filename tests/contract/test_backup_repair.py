"""Backups share the pieces of a file that did not change; those that are damaged in the store are repaired."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from store_harness import Harness

from podrace.backup.copies import CHECK_SECONDS, PIECE_BYTES, Backups, check_due
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, Format, Transaction
from podrace.database.identity import identity_of_file
from podrace.digests import digest
from podrace.errors import DataLoss

FORMAT = Format("orchestrator", 7, 1, "CREATE TABLE numbers (bytes BLOB)")
PLACE = "podrace-backup-main-orchestrator"
NOW = 1_700_000_000.0
PERIOD_SECONDS = 600.0
Write = Callable[..., str]


def insert(transaction: Transaction, size: int) -> None:
    transaction.execute("INSERT INTO numbers VALUES (?)", os.urandom(size))


@pytest.fixture
async def copy(tmp_path: Path) -> Path:
    """A database of three pieces."""
    database = Database.open(tmp_path / "state.sqlite", FORMAT, lambda: NOW)
    await database.transact(insert, 2 * PIECE_BYTES + 10_000)
    await database.copy_to(tmp_path / "copy.sqlite")
    database.close()
    return tmp_path / "copy.sqlite"


@pytest.fixture
def backups(store: CheckpointStore) -> Backups:
    opened = Backups(store, "main", "orchestrator")
    opened.claim(1)
    return opened


@pytest.fixture
def write(backups: Backups, copy: Path) -> Write:
    """Returns a function that writes a backup, and returns the name of one of its pieces."""
    database_id = identity_of_file(copy).database_id

    def written(store: CheckpointStore, seconds: float, *, requested: bool = False) -> str:
        backup = backups.write(copy, 1, database_id, NOW + seconds, hours=24, requested=requested)
        parts = read_manifest(store.within(PLACE), backup.manifest_digest).parts
        return next(part.digest for part in parts if part.name == "00000001")

    return written


def test_a_missing_piece_is_stored_again_by_the_next_backup(
    store: CheckpointStore, backups: Backups, write: Write, tmp_path: Path
) -> None:
    piece = write(store, 0)
    assert store.within(PLACE).delete_object(piece, float("-inf"))
    with pytest.raises(DataLoss):
        backups.restore(tmp_path / "lost.sqlite")
    assert write(store, 1) == piece
    for number, backup in enumerate(backups.list()):
        assert backups.restore(tmp_path / f"{number}.sqlite", backup.manifest_digest) == backup


def test_a_damaged_piece_is_stored_again_within_an_hour_and_all_backups_can_be_restored(
    harness: Harness, backups: Backups, write: Write, tmp_path: Path
) -> None:
    piece = write(harness.store, 0)
    harness.damage(piece, PLACE)
    seconds = PERIOD_SECONDS
    while seconds <= CHECK_SECONDS:
        assert write(harness.store, seconds) == piece
        seconds += PERIOD_SECONDS
    assert len(backups.list()) >= 3
    for number, backup in enumerate(backups.list()):
        assert backups.restore(tmp_path / f"{number}.sqlite", backup.manifest_digest) == backup


def test_a_backup_that_a_person_asked_for_repairs_all_pieces(
    harness: Harness, backups: Backups, write: Write, tmp_path: Path
) -> None:
    piece = write(harness.store, 0)
    harness.damage(piece, PLACE)
    write(harness.store, 1, requested=True)
    assert backups.restore(tmp_path / "restored.sqlite") == backups.newest()


@pytest.mark.parametrize("period", [61.0, 900.0, 3599.0])
def test_each_piece_is_due_once_an_hour_and_few_at_the_same_time(period: float) -> None:
    pieces = [digest(b"%d" % number) for number in range(256)]
    count = round(10 * CHECK_SECONDS / period)
    times = [NOW + number * period for number in range(count + 1)]
    for piece in pieces:
        due = [now for before, now in pairwise(times) if check_due(piece, before, now)]
        assert abs(len(due) - 10) <= 1
        assert all(later - earlier <= CHECK_SECONDS + period for earlier, later in pairwise(due))
    most = max(sum(check_due(piece, before, now) for piece in pieces) for before, now in pairwise(times[:100]))
    assert most <= 256 * period / CHECK_SECONDS * 1.3 + 12


def test_all_pieces_are_due_with_each_backup_if_backups_are_rarer() -> None:
    assert all(check_due(digest(b"%d" % number), NOW, NOW + CHECK_SECONDS) for number in range(256))
