"""Executes the changes of a service in one thread, and commits them in groups.

A change is a function that receives a Transaction. It takes effect completely or not at all. Changes run one after the
other in a separate thread, so that the data a change has read is still current when it writes. Changes that are queued
while the disk is busy share the next commit (group commit): a caller gets its result only after its change is durable,
but several changes need only one commit.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from podrace.database.format import Format
from podrace.database.sqlite import SqliteEngine
from podrace.database.transaction import Connection, Transaction
from podrace.errors import ResourceExhausted

LARGEST_BATCH = 256
"""Largest number of changes per commit, so that the first of them does not wait long."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Engine(Protocol):
    """An open connection to a database. One thread uses it: begin, the changes, each in a savepoint, commit."""

    @property
    def connection(self) -> Connection:
        """Executes the statements of changes."""
        ...

    def begin(self) -> None:
        """Begins a transaction that no other process's change can overtake."""
        ...

    def commit(self) -> None:
        """Makes the transaction durable."""
        ...

    def roll_back(self) -> None:
        """Ends the transaction without effect, if there still is one."""
        ...

    def save(self) -> None:
        """Begins a change."""
        ...

    def keep(self) -> None:
        """Ends a change that succeeded."""
        ...

    def undo(self) -> bool:
        """Takes back the change; returns False if the database has rolled back the whole transaction already."""
        ...

    def copy_to(self, path: Path, between: Callable[[], None]) -> None:
        """Writes a consistent copy to a new file; calls `between` between its parts, to execute changes."""
        ...

    def translated(self, error: Exception) -> Exception:
        """Translates errors that a caller can handle; returns other errors unchanged."""
        ...

    def close(self) -> None:
        """Closes the connection; after that, another process can open the database."""
        ...


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

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        """Starts the thread.

        Args:
            engine: The open connection.
            clock: Returns wall time, seconds since 1970.
        """
        self._engine, self._clock = engine, clock
        self._changes: queue.SimpleQueue[_Change | _Copy | None] = queue.SimpleQueue()
        # A daemon thread, so that a process that fails before `close` can exit. The database stays consistent.
        self._thread = threading.Thread(target=self._work, name="database", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, format: Format, clock: Callable[[], float]) -> "Database":
        """Opens or creates a file of SQLite and locks it until it is closed or the process exits.

        Args:
            path: The file; its folder is created.
            format: Identification and schema of the database.
            clock: Returns wall time, seconds since 1970.

        Raises:
            DataLoss: The database is damaged.
            FailedPrecondition: Another process has it open, it belongs to another program or version, or it cannot be
                written.
        """
        return cls(SqliteEngine.open(path, format), clock)

    async def transact(
        self,
        function: Callable[Concatenate[Transaction, Parameters], Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Runs `function(transaction, ...)` and returns its result once the change is durable.

        Raises:
            PodraceError: The error that the function raised; nothing was changed.
            ResourceExhausted: The disk is full, or does not answer.
            DatabaseDamaged: The database is damaged.
            Unavailable: The connection to the server was lost, or another service writes to the database now.
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
            Unimplemented: The database is not a file.
        """
        done: Future[None] = Future()
        self._changes.put(_Copy(path, done))
        await asyncio.wrap_future(done)

    def close(self) -> None:
        """Finishes the queued changes, then closes and unlocks the database."""
        self._changes.put(None)
        self._thread.join()
        self._engine.close()

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
        later: list[_Copy | None] = []

        def execute_queued() -> None:
            queued: list[_Change | _Copy | None] = []
            with suppress(queue.Empty):
                while len(queued) < LARGEST_BATCH:
                    queued.append(self._changes.get_nowait())
            later.extend(one for one in queued if not isinstance(one, _Change))
            self._execute(queued)

        try:
            self._engine.copy_to(copy.path, execute_queued)
        except Exception as error:
            copy.done.set_exception(self._engine.translated(error))
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
        """Runs changes in one transaction and sets their results after the commit. If the commit fails, all fail.

        On a full disk each change is run again on its own, because those that only read succeed.
        """
        try:
            self._engine.begin()
            outcomes = [self._attempt(change) for change in batch]
            self._engine.commit()
        except Exception as error:
            self._engine.roll_back()
            failure = self._engine.translated(error)
            if isinstance(failure, ResourceExhausted) and len(batch) > 1:
                for change in batch:
                    self._commit([change])
                return
            outcomes = [_Outcome(failure=failure)] * len(batch)
        for change, outcome in zip(batch, outcomes, strict=True):
            if outcome.failure is not None:
                change.done.set_exception(outcome.failure)
            else:
                change.done.set_result(outcome.result)

    def _attempt(self, change: _Change) -> _Outcome:
        """Runs one change; a failed change is rolled back without the others."""
        self._engine.save()
        try:
            result = change.function(Transaction(self._clock(), self._engine.connection))
        except Exception as error:
            if not self._engine.undo():
                raise  # the whole transaction was rolled back, for example because the disk is full
            return _Outcome(failure=self._engine.translated(error))
        self._engine.keep()
        return _Outcome(result=result)
