"""Opens a database of SQLite: one file, locked by the process that has it open.

A file of an earlier version is migrated when it is opened: one step per version, all in one transaction.
"""

import os
import secrets
import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from podrace.database.format import ADD_IDENTITY, IDENTITY, DatabaseDamaged, Format, moved
from podrace.errors import DataLoss, FailedPrecondition, PodraceError, ResourceExhausted

LOCK_WAIT_SECONDS = 2.0
"""Time to wait for the lock: a process that was just killed may still hold it."""
CACHE_KIBIBYTES = 256
"""Memory for pages; an eighth of SQLite's default. What is not in it is in the page cache of the system."""
NO_ACCESS = ("SQLITE_IOERR", "SQLITE_READONLY")
"""Names with which errors of the disk of an open database begin."""
COPIED_PAGES = 1024
"""Pages of a copy after which queued changes are executed."""


class SqliteEngine:
    """The open file of a database; implements podrace.database.database.Engine.

    engine = SqliteEngine.open(path, DATABASE_FORMAT)

    Attributes:
        connection: The connection of SQLite.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path, self.connection = path, connection

    @classmethod
    def open(cls, path: Path, format: Format) -> "SqliteEngine":
        """Opens or creates the file; see `Database.open`."""
        return cls(path, _connect(path, format))

    def begin(self) -> None:
        """Begins a transaction with the lock for writing."""
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Writes the transaction to the disk."""
        self.connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Ends the transaction without effect."""
        with suppress(sqlite3.Error):
            self.connection.execute("ROLLBACK")

    def save(self) -> None:
        """Begins a change."""
        self.connection.execute("SAVEPOINT change")

    def keep(self) -> None:
        """Ends a change that succeeded."""
        self.connection.execute("RELEASE change")

    def undo(self) -> bool:
        """Takes back the change; returns False if SQLite has rolled back the whole transaction already."""
        if not self.connection.in_transaction:
            return False
        self.connection.execute("ROLLBACK TO change")
        self.connection.execute("RELEASE change")
        return True

    def copy_to(self, path: Path, between: Callable[[], None]) -> None:
        """Copies page by page; SQLite also applies changes of this connection to the copy."""
        with suppress(OSError):  # SQLite reports why the file cannot be made.
            _make_private(path)
        target = sqlite3.connect(path)
        try:
            self.connection.backup(target, pages=COPIED_PAGES, progress=lambda status, remaining, total: between())
        finally:
            target.close()

    def translated(self, error: Exception) -> Exception:
        """Translates errors of SQLite that a caller can handle."""
        if _name(error).startswith(NO_ACCESS):
            # The disk, not the file: a network file system that does not answer, or one that is read-only now.
            return ResourceExhausted(
                f"database {self._path}: cannot be read or written: {error}; check quota, rights and mount of its disk"
            )
        translated = _translated(self._path, error)
        return DatabaseDamaged(translated.message) if isinstance(translated, DataLoss) else translated

    def close(self) -> None:
        """Closes and unlocks the file."""
        self.connection.close()


def _make_private(path: Path) -> None:
    """Makes an empty file that only this user can read, or takes the rights of other users from a file of this user.

    SQLite creates files that every user can read, and gives its log and its copies the mode of the database. Rights of
    the group stay, because an operator may have given them.

    Raises:
        OSError: The file cannot be made.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o007:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~0o007)
    finally:
        os.close(descriptor)


def _connect(path: Path, format: Format) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_private(path)
        connection = sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, format)
        except BaseException:
            connection.close()
            raise
        return connection
    except OSError as error:
        raise FailedPrecondition(
            f"database {path}: cannot be created or opened: {error.strerror}; choose another"
        ) from None
    except sqlite3.Error as error:
        raise _refusal(path, format, error) from None


def _prepare(connection: sqlite3.Connection, path: Path, format: Format) -> None:
    """Locks the file until the connection closes or the process exits; creates the tables of a new file."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
    connection.execute("BEGIN EXCLUSIVE")
    application, version, tables = (
        connection.execute(statement).fetchone()[0]
        for statement in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if not tables:
        for statement in format.schema.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {format.application_id}")
        connection.execute(f"PRAGMA user_version = {format.version}")
    elif application == moved(format.application_id):
        raise FailedPrecondition(
            f"database {path}: was moved to a server of PostgreSQL (podrace migrate); set `database` to its URL"
        )
    elif application != format.application_id:
        raise FailedPrecondition(f"database {path}: is not a database of the {format.owner}; choose another file")
    else:
        _migrate(connection, path, format, version)
    for statement in (*format.additions.split(";"), IDENTITY):
        connection.execute(statement)
    connection.execute(ADD_IDENTITY, (secrets.token_hex(16),))
    connection.execute("COMMIT")
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        line = " ".join(damage.split())
        raise DataLoss(f"database {path}: is damaged: {line}; restore a copy or choose another file")


def _migrate(connection: sqlite3.Connection, path: Path, format: Format, version: int) -> None:
    """Executes the steps from the version of a file to the present one; raises FailedPrecondition if one is missing."""
    statements = format.migration(version)
    if statements is None:
        raise FailedPrecondition(
            f"database {path}: was written by another version (format {version}, this one reads {format.version});"
            " use that version or choose another file"
        )
    for statement in statements:
        connection.execute(statement)
    if version != format.version:
        connection.execute(f"PRAGMA user_version = {format.version}")


def _refusal(path: Path, format: Format, error: sqlite3.Error) -> PodraceError:
    if "locked" in str(error):
        return FailedPrecondition(
            f"database {path}: another {format.owner} has it open; stop it or choose another file"
        )
    translated = _translated(path, error)
    if isinstance(translated, PodraceError):
        return translated
    return FailedPrecondition(f"database {path}: cannot be used: {error}; choose another file")


def _name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _translated(path: Path, error: Exception) -> Exception:
    """Translates errors of SQLite that a caller can handle; returns other errors unchanged."""
    if _name(error).startswith("SQLITE_FULL"):
        return ResourceExhausted(f"database {path}: {error}; free some space")
    if _name(error).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR")):
        return DataLoss(f"database {path}: is damaged: {error}; restore a copy or choose another file")
    return error
