"""Reads and writes what identifies a database and its backups, in an open database and in a file."""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from podrace.database.transaction import Transaction
from podrace.errors import DataLoss, FailedPrecondition, NotFound


@dataclass(frozen=True)
class Identity:
    """What identifies a database."""

    database_id: str
    """A random text; copies have the same."""
    backup_epoch: int
    """Epoch with which the database is backed up; 0: it was not yet."""


def read_identity(transaction: Transaction) -> Identity:
    """Returns what identifies the open database."""
    ((database_id, epoch),) = transaction.execute("SELECT database_id, backup_epoch FROM identity")
    return Identity(database_id, epoch)


def set_backup_epoch(transaction: Transaction, epoch: int) -> None:
    """Records the epoch with which the database is backed up from here on."""
    transaction.execute("UPDATE identity SET backup_epoch = ?", epoch)


def identity_of_file(path: Path) -> Identity:
    """Returns what identifies the database in a file that no service has open.

    Raises:
        NotFound: There is no such file.
        FailedPrecondition: It cannot be read.
    """
    if not path.exists():
        raise NotFound(f"database {path}: there is no such file; name another home with --home")
    try:
        with closing(sqlite3.connect(path)) as opened:
            return Identity(*opened.execute("SELECT database_id, backup_epoch FROM identity").fetchone())
    except (sqlite3.Error, TypeError) as error:
        raise FailedPrecondition(f"database {path}: cannot be read: {error}; run `podrace ls` once") from None


def copy_file(path: Path, copy: Path, epoch: int) -> None:
    """Copies the file of a database that no service has open, and records the epoch of its backups in both.

    Raises:
        FailedPrecondition: It cannot be copied.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as opened:
            opened.execute("UPDATE identity SET backup_epoch = ?", (epoch,))
            with closing(sqlite3.connect(copy)) as target:
                opened.backup(target)
    except sqlite3.Error as error:
        raise FailedPrecondition(f"database {path}: cannot be copied: {error}; run `podrace ls` once") from None


def check_file(path: Path, database_id: str) -> None:
    """Checks the file of a restored database; raises DataLoss if it is damaged or another one."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as opened:
            (damage,) = opened.execute("PRAGMA quick_check(1)").fetchone()
            (found,) = opened.execute("SELECT database_id FROM identity").fetchone()
    except (sqlite3.Error, TypeError) as error:
        raise DataLoss(f"database {path}: is damaged: {error}") from None
    if damage != "ok" or found != database_id:
        raise DataLoss(f"database {path}: is damaged: {damage}")


def mark_restored(path: Path, epoch: int) -> int:
    """Records durably in the file of a restored database with which epoch it was restored, and returns that epoch.

    Args:
        path: The file, which nothing has open.
        epoch: The lowest epoch to record. The epoch is higher than the one of the restoration before it in any case:
            epochs of backups begin again in another store or with another name, but lease epochs must not.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        opened.execute("PRAGMA synchronous = FULL")
        (restored,) = opened.execute("SELECT restored_epoch FROM identity").fetchone()
        epoch = max(epoch, restored + 1)
        opened.execute("UPDATE identity SET backup_epoch = ?, restored_epoch = ?", (epoch, epoch))
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return epoch
