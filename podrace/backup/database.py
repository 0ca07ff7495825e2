"""Opens the database of a service, from its newest backup if there is no file, and backs it up while it is open."""

import asyncio
import functools
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import prometheus_client
import structlog

from podrace.backup.config import BackupConfig
from podrace.backup.copies import Backup, Backups
from podrace.checkpoint_store import DEADLINE_SECONDS, open_store
from podrace.checkpoint_store.publish import STALE_EPOCH
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database, DatabaseLocation, Format, open_database
from podrace.database.identity import read_identity, set_backup_epoch
from podrace.database.leadership import Leadership, ends
from podrace.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    PodraceError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)

BACKUP_TIME = prometheus_client.Gauge(
    "podrace_backup_time_seconds", "When the newest backup of the database was made, seconds since 1970"
)
BACKUP_DUE = prometheus_client.Gauge(
    "podrace_backup_due_time_seconds",
    "When the next backup of the database must be made, seconds since 1970; 0: none are made periodically",
)
BACKUP_FAILURES = prometheus_client.Counter("podrace_backup_failures", "Backups of the database that failed")
RETRY_SECONDS = 1.0
START_SECONDS = 10.0
"""How long each call on the store may take when a database that exists is opened, because pods wait for the service."""
GRANT_ATTEMPTS = 60
"""Attempts to restore a database by grants: the leaderboard may start at the same time, or restore its own first."""
OpenStore = Callable[[float], CheckpointStore]
"""Opens the checkpoint store, given how long each call may take."""
_log = structlog.get_logger(__name__)


def first_wait(now: float, due: float, period_seconds: float) -> float:
    """Returns the seconds until the first backup of a process.

    Args:
        now: Wall time, seconds since 1970.
        due: When the newest backup is older than the period; one that is overdue is made at once.
        period_seconds: Time between two backups, and the longest wait: the newest backup may be from another machine,
            whose clock was ahead.
    """
    return min(max(due - now, 0.0), period_seconds)


async def _restored(restore: Callable[[], Backup | None], attempts: int) -> Backup | None:
    """Restores a database in a thread; a leaderboard that does not answer yet is asked again."""
    for attempt in range(attempts):
        try:
            restored = await asyncio.to_thread(restore)
        except (DeadlineExceeded, Unavailable) as error:
            if attempt == attempts - 1:
                raise
            _log.info("waits for the leaderboard, to look for a backup", error=error.message)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            break
    if restored:
        digest, made = restored.manifest_digest, restored.time
        _log.warning("the database was restored from a backup", backup=digest, time=made)
    return restored


class BackedUpDatabase:
    """A database with its backups.

    opened = await BackedUpDatabase.open(location, DATABASE_FORMAT, time.time, config.backup, config.store)
    async with opened as database:
        ...  # it is backed up until here, and closed

    Attributes:
        database: The open database.
        restored: The backup that it was restored from now; None if there was a file, or no backup.
        leadership: The lease of this process; None if the database is a file.
        replaced: Set when a backup is refused, because another service was restored from the backups of this one.
    """

    def __init__(
        self,
        database: Database,
        path: Path,
        config: BackupConfig,
        restored: Backup | None = None,
        leadership: Leadership | None = None,
        open_backups: Callable[[], Backups] | None = None,
    ) -> None:
        self.database, self.restored, self.leadership = database, restored, leadership
        self._path, self._config, self._open_backups = path, config, open_backups
        self._backups: Backups | None = None
        self._epoch, self._database_id = 0, ""  # Epoch 0: none was claimed yet.
        self._due, self.replaced = 0.0, asyncio.Event()
        # One at a time: the copy has a fixed name, so that a killed service leaves at most one.
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        location: DatabaseLocation,
        format: Format,
        clock: Callable[[], float],
        config: BackupConfig,
        store: str,
        *,
        address: str = "",
        on_standby: Callable[[str], None] = lambda leader: None,
        granted: OpenStore | None = None,
    ) -> "BackedUpDatabase":
        """Opens the database; one whose file does not exist is restored first, if the configuration allows that.

        Args:
            location: Where the database is. One on a server is opened when no other process leads.
            format: Its format.
            clock: Returns wall time, seconds since 1970.
            config: When backups are made.
            store: URI of the checkpoint store.
            address: Where this process can be reached; standbys name it.
            on_standby: Receives the address of the leader while another process leads.
            granted: Opens the store for backups; None: it is opened with the credentials of the environment.

        Raises:
            PodraceError: The database cannot be opened, or there is no file and the store cannot be read.
            FailedPrecondition: The file is out of date (STALE_EPOCH), or the backups are those of another database.
        """

        def open_backups(deadline_seconds: float = DEADLINE_SECONDS) -> Backups:
            if granted:
                return Backups(granted(deadline_seconds), config.name, format.owner)
            opened = open_store(store, deadline_seconds=deadline_seconds, tolerated=(ResourceExhausted,))
            return Backups(opened, config.name, format.owner)

        if location.file is None:
            database, leadership = await open_database(location, format, clock, address=address, on_standby=on_standby)
            return cls(database, Path(), config, None, leadership)
        path, restored = location.file, None
        exists = path.exists()
        # A database is rebuilt only if there is no backup, also none that a person asked for.
        if not exists and (config.period_seconds or config.rebuild):
            restored = await _restored(lambda: open_backups().restore(path), GRANT_ATTEMPTS if granted else 1)
        # In a thread: health checks are answered while the file is migrated and checked.
        database = await asyncio.to_thread(Database.open, path, format, clock)
        self = cls(database, path, config, restored, open_backups=open_backups)
        if not config.period_seconds:
            return self
        try:
            self._set_due(time.time())
            await self._try_to_claim(lambda: open_backups(START_SECONDS if exists else DEADLINE_SECONDS))
        except BaseException:
            database.close()
            raise
        return self

    async def _try_to_claim(self, open_backups: Callable[[], Backups]) -> None:
        """Claims an epoch, unless the store is full or cannot be reached: `back_up` claims one later then.

        A leaderboard of an earlier version grants no access to the store.
        """
        try:
            await self._claim(await asyncio.to_thread(open_backups))
        except (DeadlineExceeded, ResourceExhausted, Unavailable, Unimplemented) as error:
            BACKUP_FAILURES.inc()
            _log.error("backups cannot be made until the checkpoint store can be used", error=error.message)

    async def _claim(self, backups: Backups) -> None:
        """Claims the next epoch, unless another service was restored from a backup of this file."""
        identity = await self.database.transact(read_identity)
        self._database_id = identity.database_id
        newest = await asyncio.to_thread(backups.newest)
        if newest:
            BACKUP_TIME.set(newest.time)
            self._set_due(newest.time)
        epoch = await asyncio.to_thread(backups.next_epoch, self._path, identity, newest)
        # Before the claim: a file that is left after a crash in between must not count as out of date.
        await self.database.transact(set_backup_epoch, epoch)
        await asyncio.to_thread(backups.claim, epoch)
        self._epoch = epoch

    async def __aenter__(self) -> Database:
        """Starts to make backups."""
        self._running = asyncio.create_task(self.run())
        return self.database

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Makes the last backup, unless there was an error, and closes the database."""
        try:
            if error is None and self._config.period_seconds and not self.replaced.is_set():
                await self._try_to_back_up()
        finally:
            self._running.cancel()
            await asyncio.wait([self._running])
            self.database.close()

    def ends(self) -> list[Awaitable[str]]:
        """Returns what ends when this process must not change anything any more, with the reason."""
        return [*ends(self.leadership), self._wait_until_replaced()]

    async def _wait_until_replaced(self) -> str:
        await self.replaced.wait()
        return f"another service was restored from the backups of {self._path}"

    async def run(self) -> None:
        """Makes a backup each period; returns when another service has taken over, or at once without backups."""
        wait_seconds = first_wait(time.time(), self._due, self._config.period_seconds)
        while self._config.period_seconds:
            await asyncio.sleep(wait_seconds)
            wait_seconds = self._config.period_seconds
            if await self._try_to_back_up() == STALE_EPOCH:
                return

    def _set_due(self, newest: float) -> None:
        """Records when the next backup is due, after the time of the newest one."""
        if self._config.period_seconds:
            self._due = newest + self._config.period_seconds
            BACKUP_DUE.set(self._due)

    async def _try_to_back_up(self) -> str:
        """Makes a backup; a failure is logged, and its reason returned."""
        try:
            await self.back_up(requested=False)
        except PodraceError as error:
            BACKUP_FAILURES.inc()
            _log.error("the database could not be backed up", error=error.message)
            return error.reason
        except Exception:
            # A defect must not end the backups: the next one may succeed.
            BACKUP_FAILURES.inc()
            _log.exception("the database could not be backed up")
        return ""

    async def back_up(self, *, requested: bool = True) -> Backup:
        """Makes a backup now, also if none are made periodically.

        Args:
            requested: Whether a person asked for it; such a backup is kept longer than the periodic ones.

        Raises:
            Unimplemented: The database is on a server.
            PodraceError: It could not be made; a FailedPrecondition if another service makes the backups since
                (STALE_EPOCH).
        """
        if self._open_backups is None:
            raise Unimplemented("a database of PostgreSQL is backed up by its own tools, such as pg_dump")
        async with self._lock:
            if self._backups is None:
                self._backups = await asyncio.to_thread(self._open_backups)
            if not self._epoch:
                await self._claim(self._backups)
            try:
                backup = await self._copy_and_write(self._backups, requested=requested)
            except FailedPrecondition as error:
                if error.reason == STALE_EPOCH:
                    self.replaced.set()
                raise
        BACKUP_TIME.set(backup.time)
        self._set_due(backup.time)
        return backup

    async def _copy_and_write(self, backups: Backups, *, requested: bool) -> Backup:
        copy, now = self._path.with_name(f"{self._path.name}.backup"), time.time()
        try:
            copy.unlink(missing_ok=True)
            await self.database.copy_to(copy)
            write = functools.partial(backups.write, hours=self._config.hours, requested=requested)
            return await asyncio.to_thread(write, copy, self._epoch, self._database_id, now)
        except (OSError, sqlite3.Error) as error:
            raise FailedPrecondition(
                f"database {self._path}: its copy {copy} cannot be made: {error}; look at the rights and the free"
                " space of the folder, and at the number of open files"
            ) from None
        finally:
            with suppress(OSError):
                copy.unlink(missing_ok=True)
