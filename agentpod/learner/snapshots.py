"""Publishes copies of one agent in the background while it trains: snapshots of its policy, and interim checkpoints.

Only learning curves depend on snapshots, and only the next pod after a fault on interim checkpoints. What cannot be
stored or submitted is skipped with a warning in the log.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from agentpod.learner.checkpoint_files import FrozenState, PolicyCopy
from agentpod.learner.interfaces import CheckpointAccess, LeaseStatus
from podrace.errors import PodraceError
from podrace.specification.snapshot_schedule import SnapshotSchedule, period_seconds, periods_passed
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec

_log = structlog.get_logger(__name__)
MAXIMUM_UNPUBLISHED = 4
"""Number of copies held in memory while a store or a leaderboard is slow; further snapshots are skipped."""
SETTLE_SECONDS = 5.0
"""Longest wait, at the end of an assignment, for what is being published."""


class SnapshotRecorder:
    """Takes the snapshots of an agent under one lease.

    number = snapshots.due()
    if number:
        snapshots.take(number, copy)
    ...
    await snapshots.settle()
    """

    def __init__(
        self, checkpoints: CheckpointAccess, lease: LeaseStatus, spec: EvaluationSpec, begin_seconds: float | None
    ) -> None:
        """Starts the schedule.

        Args:
            checkpoints: Where snapshots are published.
            lease: The lease on the agent, with the running time of the tournament.
            spec: With the period of snapshots.
            begin_seconds: Running time of the tournament when the agent was assigned; None if unknown. Snapshots that
                were due before belong to the previous holder of the lease.
        """
        self._checkpoints, self._lease = checkpoints, lease
        period = period_seconds(spec)
        self._schedule: SnapshotSchedule | None = None
        if period is not None and begin_seconds is not None:
            self._schedule = SnapshotSchedule(period, last=periods_passed(begin_seconds, period))
        self._unpublished: set[asyncio.Task[None]] = set()

    def due(self) -> int:
        """Returns the number of the snapshot to take now, or 0 if none is due."""
        now = self._lease.running_seconds
        return self._schedule.due(now) if self._schedule and now is not None else 0

    def take(self, number: int, copy: PolicyCopy) -> None:
        """Starts to publish a policy that was just copied, as the snapshot that is due."""
        now = self._lease.running_seconds
        assert self._schedule is not None, "it was due"
        assert now is not None, "it was due"
        self._schedule.last = number
        if len(self._unpublished) >= MAXIMUM_UNPUBLISHED:
            _log.warning("a snapshot is skipped: earlier ones are not stored yet", number=number)
            return
        task = asyncio.create_task(self._publish(number, now, copy))
        self._unpublished.add(task)
        task.add_done_callback(self._unpublished.discard)

    async def _publish(self, number: int, running_seconds: float, copy: PolicyCopy) -> None:
        try:
            await self._checkpoints.publish_snapshot(copy, number, running_seconds)
        except PodraceError as error:
            _log.warning("a snapshot is lost", number=number, error=error.message)

    async def settle(self) -> None:
        """Waits for the snapshots that are being published, and cancels those that take longer than 5 s."""
        await _settle(self._unpublished)


class InterimCheckpoints:
    """Stores checkpoints without a score, so that the newest one is never much older than a period.

    interim.note()                  # whenever a copy of the agent's state is taken, for whatever purpose
    if interim.due():
        interim.store(frozen)
    ...
    await interim.settle()
    """

    def __init__(
        self,
        checkpoints: CheckpointAccess,
        period_seconds: float,
        clock: Callable[[], float],
        on_stored: Callable[[int], None],
    ) -> None:
        """Starts the first period.

        Args:
            checkpoints: Where they are stored.
            period_seconds: Longest time between two copies; infinite: none are stored.
            clock: Monotonic clock in seconds.
            on_stored: Receives the environment steps of each checkpoint that was stored.
        """
        self._checkpoints, self._period, self._clock, self._on_stored = checkpoints, period_seconds, clock, on_stored
        self._noted = clock()
        self._task: asyncio.Task[None] | None = None

    def due(self) -> bool:
        """Whether the last copy is older than a period, and none is being stored."""
        return self._clock() - self._noted >= self._period and (self._task is None or self._task.done())

    def note(self) -> None:
        """Begins the next period, because a copy was taken that will be stored."""
        self._noted = self._clock()

    def store(self, frozen: FrozenState) -> None:
        """Starts to store a copy that was just taken."""
        self._task = asyncio.create_task(self._store(frozen))

    async def _store(self, frozen: FrozenState) -> None:
        try:
            if await self._checkpoints.publish_interim(frozen):
                self._on_stored(frozen.counters.environment_steps)
        except PodraceError as error:
            _log.warning("an interim checkpoint is not stored", error=error.message)

    async def settle(self) -> None:
        """Waits for the copy that is being stored, and cancels it if it takes longer than 5 s."""
        await _settle([self._task] if self._task else [])


async def _settle(tasks: Collection["asyncio.Task[None]"]) -> None:
    if tasks:
        _, late = await asyncio.wait(set(tasks), timeout=SETTLE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
