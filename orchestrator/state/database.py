"""Extends the database with the orchestrator's schema, an event log, and requests that are executed once.

Events are logged and passed on only after their transaction is durable. The module `records` defines what the rows
mean.
"""

import asyncio
import contextvars
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from google.protobuf.message import Message

from orchestrator.decisions.event_retention import ASSIGNED, DEFAULT_EVENTS, FREQUENT_KINDS, RESULT_KINDS, excess
from orchestrator.state.clock import Clock
from podrace import database
from podrace.database.format import DatabaseDamaged
from podrace.errors import AlreadyExists, InvalidArgument, PodraceError, ResourceExhausted

PROBE, PROBE_CHARACTERS = "probe", 1 << 18
"""Name and size of the row with which a database that could not be written is tried."""
REQUEST_RECORD_SECONDS = 86_400.0
"""A repeated request is recognized for one day."""

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
CREATE INDEX algorithms_left ON events (tournament_id) WHERE kind = 'algorithm_left';
CREATE TABLE requests (
    method TEXT, request_id TEXT, fingerprint TEXT, answer TEXT, time REAL, PRIMARY KEY (method, request_id));
CREATE INDEX requests_by_time ON requests (time);
"""

ADDITIONS = """
CREATE TABLE IF NOT EXISTS deletions (tournament_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS ownerships (tournament_id TEXT PRIMARY KEY, owner TEXT NOT NULL, namespace TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pauses (tournament_id TEXT PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS labels (tournament_id TEXT PRIMARY KEY, labels TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS evaluation_epochs (tournament_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS resizes (
    pod_id TEXT PRIMARY KEY, tournament_id TEXT NOT NULL, predecessor_id TEXT NOT NULL, agent_id TEXT NOT NULL,
    phase TEXT NOT NULL, scores INTEGER NOT NULL, begin_time REAL NOT NULL, gap_seconds REAL);
CREATE INDEX IF NOT EXISTS resizes_by_tournament ON resizes (tournament_id);
CREATE INDEX IF NOT EXISTS resizes_by_agent ON resizes (agent_id);
CREATE TABLE IF NOT EXISTS give_backs (
    agent_id TEXT PRIMARY KEY, tournament_id TEXT NOT NULL, environment_steps INTEGER NOT NULL, count INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS give_backs_by_tournament ON give_backs (tournament_id);
CREATE TABLE IF NOT EXISTS losses (agent_id TEXT PRIMARY KEY, tournament_id TEXT NOT NULL, count INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS losses_by_tournament ON losses (tournament_id);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (tournament_id, kind, sequence);
"""

DATABASE_FORMAT = database.Format(
    owner="orchestrator", application_id=0x706F7263, version=1, schema=SCHEMA, additions=ADDITIONS
)
"""The application id is "porc" in ASCII."""

_log = structlog.get_logger(__name__)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
EventCallback = Callable[[str, str, Mapping[str, str]], None]

"""Receives kind, message and ids of an event."""


class EventLimit:
    """Limits the events of each tournament; used by the thread of the database alone.

    limit.apply(transaction, tournament_id)  # after each event
    """

    def __init__(self, most: int) -> None:
        """Creates the limit; 0 means none."""
        self._most = most
        # Upper bounds, because a transaction that fails also removes its events. Counted again before a deletion.
        self._counts: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def apply(self, transaction: database.Transaction, tournament_id: str) -> None:
        """Counts an event that was just stored, and deletes the oldest ones that may go if there are too many."""
        if not self._most:
            return
        known = self._counts.get(tournament_id)
        self._counts[tournament_id] = self._count(transaction, tournament_id) if known is None else known + 1
        if not self._excess(tournament_id):
            return
        self._counts[tournament_id] = self._count(transaction, tournament_id)
        surplus = self._excess(tournament_id)
        if surplus:
            deleted = delete_events(transaction, tournament_id, surplus)
            self._left[tournament_id] = self._counts[tournament_id] = self._counts[tournament_id] - deleted
            _log.info("old events deleted", tournament_id=tournament_id, deleted=deleted)

    def _excess(self, tournament_id: str) -> int:
        return excess(self._counts[tournament_id], self._left.get(tournament_id, 0), self._most)

    @staticmethod
    def _count(transaction: database.Transaction, tournament_id: str) -> int:
        return int(transaction.execute("SELECT count(*) FROM events WHERE tournament_id = ?", tournament_id)[0][0])


def occupy_space(transaction: database.Transaction) -> None:
    """Writes as much as a large change does: on a full disk, small ones may still fit into the rest of a block."""
    release_space(transaction)
    content = secrets.token_hex(PROBE_CHARACTERS // 2)
    transaction.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?)", PROBE, PROBE, "", content, 0.0)


def release_space(transaction: database.Transaction) -> None:
    """Deletes what `occupy_space` has written."""
    transaction.execute("DELETE FROM requests WHERE method = ?", PROBE)


def delete_events(transaction: database.Transaction, tournament_id: str, count: int) -> int:
    """Deletes up to `count` events of a tournament, frequent kinds first and oldest first; returns how many."""
    frequent, result = _quoted(FREQUENT_KINDS), _quoted(RESULT_KINDS)
    latest = (
        f"SELECT max(sequence) FROM events WHERE tournament_id = ? AND kind = '{ASSIGNED}' GROUP BY agent_id, pod_id"
    )
    conditions = f"kind IN ({frequent}) AND sequence NOT IN ({latest})", f"kind NOT IN ({frequent}, {result})"
    deleted = 0
    for condition in conditions:
        oldest = f"SELECT sequence FROM events WHERE tournament_id = ? AND {condition} ORDER BY sequence LIMIT ?"
        statement = f"DELETE FROM events WHERE sequence IN ({oldest}) RETURNING 1"
        values = [tournament_id] * (oldest.count("?") - 1)
        deleted += len(transaction.execute(statement, *values, count - deleted))
    return deleted


def _quoted(kinds: Iterable[str]) -> str:
    return ", ".join(f"'{kind}'" for kind in sorted(kinds))


@dataclass(frozen=True)
class Transaction(database.Transaction):
    """One transaction, with the events it recorded and the records it saved."""

    event_limit: EventLimit | None = None
    events: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Kind, message and ids of each recorded event."""
    saved: list[Any] = field(default_factory=list)
    """Saved records, in order."""

    def record_event(
        self, kind: str, message: str, *, tournament_id: str, pod_id: str = "", agent_id: str = ""
    ) -> None:
        """Stores an event; it is logged once the transaction is durable."""
        ids = {"tournament_id": tournament_id, "pod_id": pod_id, "agent_id": agent_id}
        self.execute(
            "INSERT INTO events (time, tournament_id, pod_id, agent_id, kind, message) VALUES (?, ?, ?, ?, ?, ?)",
            self.now,
            *ids.values(),
            kind,
            message,
        )
        if self.event_limit:
            self.event_limit.apply(self, tournament_id)
        self.events.append((kind, message, {name: value for name, value in ids.items() if value}))

    def run_once(self, method: str, request_id: str, request: Message, action: Callable[[], str]) -> str:
        """Runs `action`, unless the same request was executed before, and returns its answer.

        Returns:
            The answer of `action`, now or when the request was executed first.

        Raises:
            InvalidArgument: The request has no id.
            AlreadyExists: The id was used for a different request.
        """
        if not request_id:
            raise InvalidArgument(f"{method}: request_id is empty; set a unique text, so that a retry is recognized")
        fingerprint = sha256(request.SerializeToString(deterministic=True)).hexdigest()
        self.execute("DELETE FROM requests WHERE time < ?", self.now - REQUEST_RECORD_SECONDS)
        found = self.execute(
            "SELECT fingerprint, answer FROM requests WHERE method = ? AND request_id = ?", method, request_id
        )
        if found:
            if found[0][0] != fingerprint:
                raise AlreadyExists(f"{method}: request_id {request_id!r} was used for another request; use a new one")
            return str(found[0][1])
        answer = action()
        self.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?)", method, request_id, fingerprint, answer, self.now)
        return answer


class StateDatabase:
    """The database of the orchestrator.

    state = StateDatabase.open(path, clock)
    tournament = await state.transact(find_tournament, tournament_id)
    state.close()

    Attributes:
        fault: Why the database could not be written last; empty: it could. A full disk is the usual cause.
    """

    def __init__(self, opened: database.Database, *, most_events: int = DEFAULT_EVENTS) -> None:
        """Wraps an open database.

        Args:
            opened: The database.
            most_events: Events that are kept of each tournament; 0: all.
        """
        self.fault, self._damaged = "", False
        self._database, self._event_limit = opened, EventLimit(most_events)
        self._on_saved: Callable[[Sequence[Any]], None] = lambda saved: None
        self._on_event: EventCallback = lambda kind, message, ids: None

    @classmethod
    def open(cls, path: Path, clock: Clock) -> "StateDatabase":
        """Opens the database, or creates it; see `Database.open`.

        Raises:
            DataLoss: The database is damaged.
            FailedPrecondition: Another instance has it open, it belongs to another program or version, or it cannot be
                written.
        """
        return cls(database.Database.open(path, DATABASE_FORMAT, clock.wall))

    def on_saved(self, on_saved: Callable[[Sequence[Any]], None]) -> None:
        """Sets the function that receives the records saved by each transaction.

        It is called on the event loop once the transaction is durable, in the order of the transactions, and before
        `transact` returns to its caller. It is also called if the caller was cancelled in the meantime.
        """
        self._on_saved = on_saved

    def on_event(self, on_event: EventCallback) -> None:
        """Sets the function that receives each event (kind, message, ids) once it is durable; it must not block.

        It is called after the function of `on_saved`, and as that one, also if the caller was cancelled.
        """
        self._on_event = on_event

    async def transact(
        self,
        function: Callable[Concatenate[Transaction, Parameters], Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Runs `function(transaction, ...)` and returns its result once the transaction is durable; logs its events.

        Raises:
            PodraceError: An error of the function; nothing is changed in that case.
            ResourceExhausted: The disk is full, or does not answer.
            DatabaseDamaged: The database is damaged.
        """
        refusals: list[PodraceError] = []

        def change(plain: database.Transaction) -> tuple[Result, Transaction]:
            transaction = Transaction(plain.now, plain.connection, self._event_limit)
            try:
                return function(transaction, *args, **kwargs), transaction
            except PodraceError as error:
                refusals.append(error)
                raise

        loop = asyncio.get_running_loop()
        done = self._database.submit(change)
        # Registered before waiting, so that the cache is updated before the caller continues. The context has the ids
        # that are bound to the log lines of the caller.
        context = contextvars.copy_context()
        done.add_done_callback(
            lambda finished: loop.call_soon_threadsafe(self._notify_saved, finished, context=context)
        )
        try:
            result, _ = await asyncio.wrap_future(done)
        except ResourceExhausted as error:
            if error not in refusals:
                self._set_fault(error.message)
                self._damaged = isinstance(error, DatabaseDamaged)
            raise
        return result

    async def probe(self) -> None:
        """Tries to write if that failed last; `fault` says afterwards whether it fails still.

        A damaged database stays so until this service starts again.
        """
        if not self.fault or self._damaged:
            return
        with suppress(ResourceExhausted):
            await self.transact(occupy_space)
            await self.transact(release_space)
            self._set_fault("")

    def _set_fault(self, fault: str) -> None:
        if fault and not self.fault:
            _log.error("the database cannot be written", error=fault)
        elif self.fault and not fault:
            _log.info("the database can be written again")
        self.fault = fault

    def _notify_saved(self, finished: "Future[tuple[Any, Transaction]]") -> None:
        if finished.cancelled() or finished.exception() is not None:
            return
        _, transaction = finished.result()
        if transaction.saved:
            self._on_saved(transaction.saved)
        for kind, message, ids in transaction.events:
            _log.info(message, kind=kind, **ids)
            self._on_event(kind, message, ids)

    def close(self) -> None:
        """Finishes pending transactions, then closes and unlocks the database."""
        self._database.close()
