"""Runs the SQLite database of a service: one file, one connection, one thread.

A change is a function that receives a Transaction. It takes effect completely or not at all. Changes run one after the
other in a separate thread, so that the data a change has read is still current when it writes. Changes that are queued
while the disk is busy share the next commit (group commit): a caller gets its result only after its change is on disk,
but several changes need only one write to the disk.

A file of an earlier version is migrated when it is opened: one step per version, all in one transaction.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, PodraceError, ResourceExhausted

LOCK_WAIT_SECONDS = 2.0
"""Time to wait for the lock: a process that was just killed may still hold it."""
LARGEST_NUMBER = 2**63 - 1
LARGEST_BATCH = 256
"""Largest number of changes per commit, so that the first of them does not wait long."""
COPIED_PAGES = 1024
"""Pages of a copy after which queued changes are executed."""
IDENTITY = """
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), database_id TEXT NOT NULL, backup_epoch INTEGER NOT NULL,
    restored_epoch INTEGER NOT NULL);
INSERT OR IGNORE INTO identity VALUES (1, lower(hex(randomblob(16))), 0, 0)
"""
"""One row: an id that no other database has, the epoch with which it is backed up, and the one with which it was
restored last; 0: none."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Format:
    """Identification and schema of a service's database."""

    owner: str
    """Name of the service for messages, such as `leaderboard`."""
    application_id: int
    """Marks a file as a database of this service."""
    version: int
    """Version of the schema; a file with a later version is refused."""
    schema: str
    """Statements that create the tables of a new file."""
    additions: str = ""
    """Statements that create tables that files of this version may lack and earlier builds ignore: `CREATE TABLE
    IF NOT EXISTS ...`."""
    migrations: Mapping[int, str] = field(default_factory=dict)
    """Statements that turn a file of a version into one of the next version. A file of a version without an entry is
    refused."""


@dataclass(frozen=True)
class Transaction:
    """Access of one change to the database."""

    now: float
    """Wall time, seconds since 1970."""
    connection: sqlite3.Connection

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Executes one statement and returns its rows.

        Raises:
            InvalidArgument: An integer is too large for the database; such a value can only come from a request.
        """
        try:
            return self.connection.execute(statement, values).fetchall()
        except OverflowError:
            largest = max(value for value in values if isinstance(value, int))
            raise InvalidArgument(f"the number {largest} is too large: at most {LARGEST_NUMBER}") from None


@dataclass(frozen=True)
class _Change:
    function: Callable[[Transaction], Any]
    done: Future[Any]


@dataclass(frozen=True)
class _Copy:
    path: Path
    done: Future[None]


@dataclass(frozen=True)
class _Outcome:
    result: Any = None
    failure: Exception | None = None


class Database:
    """The open database of a service.

    state = Database.open(path, DATABASE_FORMAT, time.time)
    agent = await state.transact(find_agent, agent_id)
    state.close()
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._path, self._connection, self._clock = path, connection, clock
        self._changes: queue.SimpleQueue[_Change | _Copy | None] = queue.SimpleQueue()
        # A daemon thread, so that a process that fails before `close` can exit. The file stays consistent.
        self._thread = threading.Thread(target=self._work, name="sqlite", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, format: Format, clock: Callable[[], float]) -> "Database":
        """Opens or creates the database and locks it until it is closed or the process exits.

        Args:
            path: The file; its folder is created.
            format: Identification and schema of the database.
            clock: Returns wall time, seconds since 1970.

        Raises:
            DataLoss: The database is damaged.
            FailedPrecondition: Another process has it open, it belongs to another program or version, or it cannot be
                written.
        """
        return cls(path, _connect(path, format), clock)

    async def transact(
        self,
        function: Callable[Concatenate[Transaction, Parameters], Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Runs `function(transaction, ...)` and returns its result once the change is durable.

        Raises:
            PodraceError: The error that the function raised; nothing was changed.
            ResourceExhausted: The disk is full.
            DataLoss: The database is damaged.
        """
        return await asyncio.wrap_future(self.submit(lambda transaction: function(transaction, *args, **kwargs)))

    def submit(self, function: Callable[[Transaction], Result]) -> Future[Result]:
        """As `transact`, without waiting. Callbacks of the futures are called in the order of the changes."""
        done: Future[Result] = Future()
        self._changes.put(_Change(function, done))
        return done

    async def copy_to(self, path: Path) -> None:
        """Writes a consistent copy to a new file, by the online backup interface; changes continue meanwhile.

        The copy has every change that was durable when this was called, and possibly later ones.

        Raises:
            PodraceError: The copy could not be written.
        """
        done: Future[None] = Future()
        self._changes.put(_Copy(path, done))
        await asyncio.wrap_future(done)

    def close(self) -> None:
        """Finishes the queued changes, then closes and unlocks the database."""
        self._changes.put(None)
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        batch: list[_Change | _Copy | None] = []
        while None not in batch:
            batch = self._next_batch()
            self._execute(batch)
            for copy in batch:
                if isinstance(copy, _Copy) and copy.done.set_running_or_notify_cancel():
                    self._copy(copy)

    def _execute(self, batch: Sequence[_Change | _Copy | None]) -> None:
        # Changes whose caller was cancelled meanwhile are skipped.
        changes = [one for one in batch if isinstance(one, _Change) and one.done.set_running_or_notify_cancel()]
        if changes:
            self._commit(changes)

    def _copy(self, copy: _Copy) -> None:
        """Copies page by page; SQLite also applies changes of this connection to the copy."""
        later: list[_Copy | None] = []

        def execute_queued(status: int, remaining: int, total: int) -> None:
            queued: list[_Change | _Copy | None] = []
            with suppress(queue.Empty):
                while len(queued) < LARGEST_BATCH:
                    queued.append(self._changes.get_nowait())
            later.extend(one for one in queued if not isinstance(one, _Change))
            self._execute(queued)

        try:
            target = sqlite3.connect(copy.path)
            try:
                self._connection.backup(target, pages=COPIED_PAGES, progress=execute_queued)
            finally:
                target.close()
        except Exception as error:
            copy.done.set_exception(_translated(copy.path, error))
        else:
            copy.done.set_result(None)
        for one in later:
            self._changes.put(one)

    def _next_batch(self) -> list[_Change | _Copy | None]:
        """Waits for a change and takes the queued ones; None in the batch: `close` was called."""
        batch: list[_Change | _Copy | None] = [self._changes.get()]
        with suppress(queue.Empty):
            while len(batch) < LARGEST_BATCH:
                batch.append(self._changes.get_nowait())
        return batch

    def _commit(self, batch: Sequence[_Change]) -> None:
        """Runs changes in one transaction and sets their results after the commit. If the commit fails, all fail."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._attempt(change) for change in batch]
            self._connection.execute("COMMIT")
        except Exception as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            outcomes = [_Outcome(failure=_translated(self._path, error))] * len(batch)
        for change, outcome in zip(batch, outcomes, strict=True):
            if outcome.failure is not None:
                change.done.set_exception(outcome.failure)
            else:
                change.done.set_result(outcome.result)

    def _attempt(self, change: _Change) -> _Outcome:
        """Runs one change; a failed change is rolled back without the others."""
        self._connection.execute("SAVEPOINT change")
        try:
            result = change.function(Transaction(self._clock(), self._connection))
        except Exception as error:
            if not self._connection.in_transaction:
                raise  # SQLite has rolled back the whole transaction, for example because the disk is full
            self._connection.execute("ROLLBACK TO change")
            self._connection.execute("RELEASE change")
            return _Outcome(failure=_translated(self._path, error))
        self._connection.execute("RELEASE change")
        return _Outcome(result=result)


def _connect(path: Path, format: Format) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, format)
        except BaseException:
            connection.close()
            raise
        return connection
    except OSError as error:
        raise FailedPrecondition(
            f"database {path}: its folder cannot be created: {error.strerror}; choose another"
        ) from None
    except sqlite3.Error as error:
        raise _refusal(path, format, error) from None


def _prepare(connection: sqlite3.Connection, path: Path, format: Format) -> None:
    """Locks the file until the connection closes or the process exits; creates the tables of a new file."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
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
    elif application != format.application_id:
        raise FailedPrecondition(f"database {path}: is not a database of the {format.owner}; choose another file")
    else:
        _migrate(connection, path, format, version)
    for statement in (*format.additions.split(";"), *IDENTITY.split(";")):
        connection.execute(statement)
    connection.execute("COMMIT")
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        line = " ".join(damage.split())
        raise DataLoss(f"database {path}: is damaged: {line}; restore a copy or choose another file")


def _migrate(connection: sqlite3.Connection, path: Path, format: Format, version: int) -> None:
    """Executes the steps from the version of a file to the present one; raises FailedPrecondition if one is missing."""
    steps = range(version, format.version)
    if version > format.version or any(step not in format.migrations for step in steps):
        raise FailedPrecondition(
            f"database {path}: was written by another version (format {version}, this one reads {format.version});"
            " use that version or choose another file"
        )
    for step in steps:
        for statement in format.migrations[step].split(";"):
            connection.execute(statement)
    if steps:
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


def _translated(path: Path, error: Exception) -> Exception:
    """Translates errors of SQLite that a caller can handle; returns other errors unchanged."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return ResourceExhausted(f"database {path}: {error}; free some space")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR")):
        return DataLoss(f"database {path}: is damaged: {error}; restore a copy or choose another file")
    return error
