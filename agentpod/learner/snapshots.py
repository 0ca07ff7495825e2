"""Takes the snapshots of one agent: its policy is copied between two updates, and stored and told beside the training.

Curves rest on them and nothing else does: one that cannot be stored or told is a line in the log.
"""

import asyncio

import structlog

from agentpod.learner.checkpoint_files import PolicyCopy
from agentpod.learner.lease import Lease
from agentpod.learner.publisher import Publisher
from podrace.errors import PodraceError
from podrace.specification.snapshot_schedule import SnapshotSchedule, period_seconds, periods_passed
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec

_log = structlog.get_logger(__name__)
MOST_UNDER_WAY = 4
"""Copies held in memory while a store or a leaderboard is slow; what is due beyond them is left out."""
SETTLE_SECONDS = 5.0
"""What is under way at the end of an assignment may take this long."""


class SnapshotRecorder:
    """The snapshots of an agent under one lease.

    number = snapshots.due()
    if number:
        snapshots.take(number, copy)
    ...
    await snapshots.settle()
    """

    def __init__(self, publisher: Publisher, lease: Lease, spec: EvaluationSpec) -> None:
        """What was due before this lease began is somebody else's."""
        self._publisher, self._lease = publisher, lease
        period, now = period_seconds(spec), lease.running_seconds
        self._schedule: SnapshotSchedule | None = None
        if period is not None and now is not None:
            self._schedule = SnapshotSchedule(period, last=periods_passed(now, period))
        self._under_way: set[asyncio.Task[None]] = set()

    def due(self) -> int:
        """The number of the snapshot to be taken now; 0 if there is none."""
        now = self._lease.running_seconds
        return self._schedule.due(now) if self._schedule and now is not None else 0

    def take(self, number: int, copy: PolicyCopy) -> None:
        """Begins to store a policy that was copied just now, as the snapshot that is due."""
        now = self._lease.running_seconds
        assert self._schedule is not None, "it was due"
        assert now is not None, "it was due"
        self._schedule.last = number
        if len(self._under_way) >= MOST_UNDER_WAY:
            _log.warning("a snapshot is left out: those before it are not stored yet", number=number)
            return
        task = asyncio.create_task(self._keep(number, now, copy))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _keep(self, number: int, running_seconds: float, copy: PolicyCopy) -> None:
        try:
            await self._publisher.publish_snapshot(copy, number, running_seconds)
        except PodraceError as error:
            _log.warning("a snapshot is lost", number=number, error=error.message)

    async def settle(self) -> None:
        """Waits for what is under way, not for ever."""
        if self._under_way:
            _, late = await asyncio.wait(set(self._under_way), timeout=SETTLE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
