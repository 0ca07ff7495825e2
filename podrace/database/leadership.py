"""Determines which of several processes may write to a database of PostgreSQL: the leader.

One row has the epoch of the leader and when its lease expires, by the clock of the server. The leader renews it. Once
it has expired, another process takes over with the next epoch. Invariants:

- Each transaction of a leader locks the row of its own epoch until it ends. A takeover changes the epoch, which waits
  for that lock. So no transaction of an earlier leader is committed after a takeover, whatever its process believes.
- The server ends a transaction in which it receives no statement for `IDLE_SECONDS`, so a leader that was stopped
  within one delays a takeover by that time only.
- A leader considers its lease expired no later than the server does: it counts from before each renewal.
- Before each change outside of the database (a checkpoint file, a pod, a call of another service), a leader checks that
  it still leads (`leader_check`). So a leader that was stopped between a decision and this check changes nothing.

What is not guaranteed: the check and the change are two steps. A leader that is stopped between them makes that change
when it continues, and a request that it has sent may arrive after a takeover. A late stop does not reach a later pod of
the same id, because it names what no other pod has: uids of Kubernetes, container ids, a volume, processes. What a late
change can still do:

- A pod is started, which the new leader lists like all others, and adopts or stops.
- Another service receives a call, and treats it as if it had arrived before the takeover.
- A checkpoint file is deleted that was not needed before the takeover, even if the new leader needs it. A file that was
  stored again in the meantime is kept by a store in a folder; an S3 server has no such condition.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from podrace.errors import Unavailable

CheckLeads = Callable[[], None]
"""Raises Unavailable unless this process leads for certain; called before each change outside of the database."""
IDLE_SECONDS = 4.0
TABLE = """
CREATE TABLE IF NOT EXISTS leadership (
    epoch BIGINT PRIMARY KEY, one BIGINT NOT NULL UNIQUE CHECK (one = 1), address TEXT NOT NULL,
    expire_time TIMESTAMPTZ NOT NULL);
INSERT INTO leadership VALUES (0, 1, '', '-infinity') ON CONFLICT DO NOTHING
"""
TAKE = """
UPDATE leadership SET epoch = epoch + 1, address = %s, expire_time = clock_timestamp() + make_interval(secs => %s)
WHERE expire_time < clock_timestamp() RETURNING epoch
"""
RENEW = """
UPDATE leadership SET expire_time = clock_timestamp() + make_interval(secs => %s) WHERE epoch = %s RETURNING epoch
"""
RESIGN = "UPDATE leadership SET expire_time = '-infinity' WHERE epoch = %s"
READ = "SELECT address FROM leadership WHERE expire_time >= clock_timestamp()"
LOCK = "SELECT epoch FROM leadership WHERE epoch = {epoch} FOR KEY SHARE"
"""Waits for a takeover that is being committed, and delays later ones; renewals change no key, so they do not wait."""
_log = structlog.get_logger(__name__)


class Statements(Protocol):
    """Executes statements, each in a separate transaction."""

    def execute(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Executes a statement with `%s` for each value and returns its rows; raises PodraceError."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


@dataclass(frozen=True)
class LeaseTimes:
    """Times of a leader's lease in seconds."""

    lease: float = 6.0
    """A leader that has not renewed for this long is replaced."""
    renew: float = 1.5
    """Time between two renewals."""
    poll: float = 0.5
    """Time between two attempts of a standby to take over."""


def since_boot() -> float:
    """Returns the seconds since the machine started; other monotonic clocks stand still while it is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def is_valid(now: float, renew_time: float, times: LeaseTimes) -> bool:
    """Whether a leader may act, by its own monotonic clock: it began its last renewal less than a lease ago."""
    return now < renew_time + times.lease


def only_replica() -> None:
    """Check of a process that has no other replicas: it always leads."""


def leader_check(leadership: "Leadership | None") -> CheckLeads:
    """Returns the check of a process; one that never fails for a database that is a file."""
    return leadership.check if leadership else only_replica


def ends(leadership: "Leadership | None") -> list[Awaitable[str]]:
    """Returns what ends when a process does not lead any more; nothing for a database that is a file."""
    return [leadership.lost()] if leadership else []


class Leadership:
    """The lease of a leader, which a thread renews.

    leadership = await Leadership.acquire(connect, "10.0.0.7:50051", on_standby=print)
    leadership.epoch             # of each transaction
    await leadership.lost()      # until another process may have taken over

    Attributes:
        epoch: Epoch of the leader; later leaders have higher ones.
    """

    def __init__(
        self,
        connect: Callable[[], Statements],
        epoch: int,
        renew_time: float,
        times: LeaseTimes,
        monotonic: Callable[[], float] = since_boot,
    ) -> None:
        """Starts to renew.

        Args:
            connect: Opens a connection that nothing else uses.
            epoch: The epoch that was acquired.
            renew_time: When it was acquired, by the monotonic clock.
            times: Times of the lease.
            monotonic: Returns monotonic time in seconds.
        """
        self.epoch, self._renew_time, self._times, self._monotonic = epoch, renew_time, times, monotonic
        self._connect, self._ended, self._taken = connect, threading.Event(), False
        self._failing = False
        self._observers: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._renew_until_ended, name="leadership", daemon=True)
        self._thread.start()

    @classmethod
    async def acquire(
        cls,
        connect: Callable[[], Statements],
        address: str,
        *,
        times: LeaseTimes,
        on_standby: Callable[[str], None],
        monotonic: Callable[[], float] = since_boot,
    ) -> "Leadership":
        """Waits until the database has no leader, and becomes it.

        Args:
            connect: Opens a connection to the database.
            address: Where this process can be reached; standbys name it.
            times: Times of the lease.
            on_standby: Receives the address of the leader after each attempt to take over.
            monotonic: Returns monotonic time in seconds.

        Raises:
            PodraceError: The database cannot be used; `Outage.wait_until_usable` tries again after Unavailable.
        """
        connection = await asyncio.to_thread(connect)
        try:
            while True:
                begin = monotonic()
                taken = await asyncio.to_thread(connection.execute, TAKE, [address, times.lease])
                if taken:
                    _log.info("this replica leads", epoch=taken[0][0])
                    return cls(connect, taken[0][0], begin, times, monotonic)
                leaders = await asyncio.to_thread(connection.execute, READ, [])
                on_standby(leaders[0][0] if leaders else "")
                await asyncio.sleep(times.poll)
        finally:
            connection.close()

    def is_valid(self) -> bool:
        """Whether this process still leads for certain."""
        return not self._taken and is_valid(self._monotonic(), self._renew_time, self._times)

    def check(self) -> None:
        """Raises Unavailable unless this process still leads for certain."""
        if not self.is_valid():
            raise Unavailable("another replica of this service leads; call it instead")

    def lose(self) -> None:
        """Records that another process has taken over, or that the connection for changes was lost."""
        self._taken = True

    def on_lost(self, observer: Callable[[], None]) -> None:
        """Calls an observer, in a thread, when this process does not lead any more and did not resign."""
        self._observers.append(observer)

    async def lost(self) -> str:
        """Waits until this process does not lead for certain, and returns why."""
        while self.is_valid():
            await asyncio.sleep(self._times.poll)
        return "another replica leads, or the connection to the database was lost"

    def resign(self) -> None:
        """Ends the lease, so that a standby can take over at once."""
        self._ended.set()
        self._thread.join(self._times.lease)

    def _renew_until_ended(self) -> None:
        connection: Statements | None = None
        while not self._ended.wait(self._times.renew) and self.is_valid():
            connection = self._renew(connection)
        if not self._ended.is_set():
            for observe in self._observers:
                observe()
        if self._ended.is_set() and self.is_valid():
            try:
                connection = connection or self._connect()
                connection.execute(RESIGN, [self.epoch])
            except Exception as error:
                _log.warning("the lease of the leader could not be ended; it expires", error=str(error))
        if connection:
            connection.close()

    def _renew(self, connection: Statements | None) -> Statements | None:
        """Renews once; returns the connection for the next renewal, None after a failure."""
        begin = self._monotonic()
        try:
            connection = connection or self._connect()
            if not connection.execute(RENEW, [self._times.lease, self.epoch]):
                self.lose()
            elif not self._taken:
                self._renew_time = begin
            self._failing = False
        except Exception as error:
            if not self._failing:
                _log.warning("the lease of the leader could not be renewed", error=str(error))
            self._failing = True
            if connection:
                connection.close()
            return None
        return connection
