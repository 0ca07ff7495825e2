"""Owns the database: one SQLite file, one connection, one thread. Knows nothing of what the rows mean (see records).

A change is a function that is given a Transaction; all it does happens, or nothing of it. It runs off the event loop,
one at a time, so that whatever it reads is still true when it writes.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from google.protobuf.message import Message

from orchestrator.clock import Clock
from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument, PodraceError, ResourceExhausted

APPLICATION_ID = 0x706F7263
"""Marks a database as an orchestrator's ("porc")."""
SCHEMA_VERSION = 1
REQUEST_RECORD_SECONDS = 86_400.0
"""A repeat of a request is recognized for a day."""
LOCK_WAIT_SECONDS = 0.5
"""An instance that was just killed may still hold its lock for a moment."""

SCHEMA = """
CREATE TABLE tournaments (
    tournament_id TEXT PRIMARY KEY, sequence INTEGER UNIQUE, spec BLOB, state INTEGER, reason TEXT, create_time REAL,
    end_time REAL, running_seconds REAL, next_agent INTEGER, next_pod INTEGER, next_evaluation INTEGER, mesh_id TEXT,
    agents_failed_in_row INTEGER, pods_died_in_row INTEGER, best BLOB);
CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY, tournament_id TEXT, number INTEGER, phase TEXT, lease_epoch INTEGER, pod_id TEXT,
    incarnation TEXT, environment_steps INTEGER, agent BLOB);
CREATE INDEX agents_by_tournament ON agents (tournament_id, phase, number);
CREATE TABLE evaluations (
    evaluation_id TEXT PRIMARY KEY, tournament_id TEXT, number INTEGER, phase TEXT, lease_epoch INTEGER, pod_id TEXT,
    incarnation TEXT, request BLOB, result BLOB, error TEXT);
CREATE INDEX evaluations_by_tournament ON evaluations (tournament_id, phase, number);
CREATE TABLE pods (
    pod_id TEXT PRIMARY KEY, tournament_id TEXT, number INTEGER, phase TEXT, start_time REAL, layout INTEGER,
    cores REAL, memory_bytes INTEGER, gpus INTEGER, useful INTEGER, drain_reason TEXT);
CREATE INDEX pods_by_phase ON pods (phase, tournament_id);
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, tournament_id TEXT, pod_id TEXT, agent_id TEXT, kind TEXT,
    message TEXT);
CREATE INDEX events_by_tournament ON events (tournament_id, sequence);
CREATE TABLE requests (
    method TEXT, request_id TEXT, fingerprint TEXT, answer TEXT, time REAL, PRIMARY KEY (method, request_id));
CREATE INDEX requests_by_time ON requests (time);
"""

_log = structlog.get_logger(__name__)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Transaction:
    """One change: what it reads and writes, and what it tells about itself.

    Attributes:
        now: Wall time, seconds since 1970.
    """

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.now = now
        self.lines: list[tuple[str, str, dict[str, str]]] = []
        self._connection = connection

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Executes one statement and returns its rows."""
        return self._connection.execute(statement, values).fetchall()

    def record(self, kind: str, message: str, *, tournament_id: str, pod_id: str = "", agent_id: str = "") -> None:
        """Stores an event, and logs it once it is durable."""
        ids = {"tournament_id": tournament_id, "pod_id": pod_id, "agent_id": agent_id}
        self.execute(
            "INSERT INTO events (time, tournament_id, pod_id, agent_id, kind, message) VALUES (?, ?, ?, ?, ?, ?)",
            self.now,
            *ids.values(),
            kind,
            message,
        )
        self.lines.append((kind, message, {name: value for name, value in ids.items() if value}))

    def once(self, method: str, request_id: str, request: Message, action: Callable[[], str]) -> str:
        """Does `action` unless this very request was done before, and returns the name it answered with then.

        Raises:
            InvalidArgument: The request has no id.
            AlreadyExists: Another request came under this id.
        """
        if not request_id:
            raise InvalidArgument(f"{method}: request_id is empty; send any new text, so that a repeat does no harm")
        fingerprint = sha256(request.SerializeToString(deterministic=True)).hexdigest()
        self.execute("DELETE FROM requests WHERE time < ?", self.now - REQUEST_RECORD_SECONDS)
        found = self.execute(
            "SELECT fingerprint, answer FROM requests WHERE method = ? AND request_id = ?", method, request_id
        )
        if found:
            if found[0][0] != fingerprint:
                raise AlreadyExists(f"{method}: request_id {request_id!r} was used for another request; send a new one")
            return str(found[0][1])
        answer = action()
        self.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?)", method, request_id, fingerprint, answer, self.now)
        return answer


class State:
    """What is remembered.

    state = await State.open(path, clock)
    tournament = await state.transact(find_tournament, tournament_id)
    await state.close()
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._connection: sqlite3.Connection

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> "State":
        """Opens the database, or makes it, and locks it.

        Raises:
            FailedPrecondition: Another instance has it open, it belongs to another program or version, or it cannot be
                written.
        """
        state = cls(path, clock)
        try:
            state._connection = await state._run(partial(_connect, path))
        except BaseException:
            state._thread.shutdown()
            raise
        return state

    async def transact(
        self,
        function: Callable[Concatenate[Transaction, Parameters], Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Runs `function(transaction, ...)` and returns what it returns, once that is durable.

        Raises:
            PodraceError: What the function raises; nothing is changed then.
            ResourceExhausted: The disk is full.
        """

        def run() -> tuple[Result, Transaction]:
            transaction = Transaction(self._connection, self._clock.wall())
            return self._commit(lambda: function(transaction, *args, **kwargs)), transaction

        result, transaction = await self._run(run)
        for kind, message, ids in transaction.lines:
            _log.info(message, kind=kind, **ids)
        return result

    async def close(self) -> None:
        """Closes and unlocks the database."""
        await self._run(lambda: self._connection.close())
        self._thread.shutdown()

    async def _run(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _commit(self, change: Callable[[], Result]) -> Result:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            result = change()
            self._connection.execute("COMMIT")
            return result
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
                raise ResourceExhausted(f"database {self._path}: {error}; free some space") from error
            raise


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection
    except (OSError, sqlite3.Error) as error:
        raise _refusal(path, error) from None


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Locks the file until the connection closes, however the process ends, and makes the tables of a new one."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")
    application, version, tables = (
        connection.execute(statement).fetchone()[0]
        for statement in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if not tables:
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif application != APPLICATION_ID:
        raise FailedPrecondition(f"database {path}: is not an orchestrator's; choose another file")
    elif version != SCHEMA_VERSION:
        raise FailedPrecondition(
            f"database {path}: was written by another version (layout {version}, this one reads {SCHEMA_VERSION});"
            " use that version or choose another file"
        )
    connection.execute("COMMIT")


def _refusal(path: Path, error: OSError | sqlite3.Error) -> PodraceError:
    if isinstance(error, OSError):
        return FailedPrecondition(f"database {path}: its folder cannot be made: {error.strerror}; choose another")
    if "locked" in str(error):
        return FailedPrecondition(
            f"database {path}: another orchestrator has it open; stop that one or choose another file"
        )
    return FailedPrecondition(f"database {path}: cannot be used: {error}; choose another file")
