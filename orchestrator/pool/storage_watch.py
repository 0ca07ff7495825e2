"""Pauses tournaments while storage accepts none of their changes, and records when faults begin and end."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from orchestrator.decisions.storage_faults import Report, StorageFault, faults_of, faults_of_database
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.runtime import RuntimeState
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.printable import printable

REMEDY = "pods keep the newest state of their agents and continue by themselves; free space or repair the store"
DATABASE_REMEDY = "pods continued to train; it was recorded as soon as there was space"


class StorageWatch:
    """Compares what pods report with what they reported in the cycle before.

    await watch.check(now, running_ids)
    watch.pause_all(fault, running_ids)  # instead, while the database cannot be written
    runtime.paused                       # reason by tournament
    """

    def __init__(
        self, state: StateDatabase, runtime: RuntimeState, find_shortage: Callable[[], str] = lambda: ""
    ) -> None:
        """Creates it.

        Args:
            state: Receives the events.
            runtime: State in memory, in which the pauses are set.
            find_shortage: Returns why the disk of the database has too little space for further agents; empty: it has
                enough. Blocks.
        """
        self._state, self._runtime, self._find_shortage = state, runtime, find_shortage
        self._faults: Mapping[str, StorageFault] = {}
        # Faults that began while the database could not be written.
        self._unrecorded: dict[str, StorageFault] = {}

    async def check(self, now: float, running: Collection[str]) -> None:
        """Sets which tournaments are paused, and records events for faults that began or ended.

        Args:
            now: Monotonic time.
            running: Ids of the tournaments that run. No pod asks for an agent of another one any more.
        """
        self._runtime.shortage = await asyncio.to_thread(self._find_shortage)
        reports = (
            Report(lease.tournament_id, lease.pod_id, printable(lease.progress.storage_fault))
            for lease in self._runtime.leases.held.values()
            if lease.trains and now < lease.expires and _has_reported(lease.progress)
        )
        self._runtime.without_space = {
            name: reason for name, reason in self._runtime.without_space.items() if name in running
        }
        found = faults_of(reports, self._runtime.without_space)
        self._pause(found)
        began = self._unrecorded | {name: found[name] for name in sorted(found.keys() - self._faults.keys())}
        ended = (self._faults.keys() | self._unrecorded.keys()) - found.keys()
        if began or ended:
            await self._state.transact(record_changes, began, sorted(ended))
            self._runtime.changes.notify_all()
        # Only now: if the events could not be recorded, the next cycle tries again.
        self._faults, self._unrecorded = found, {}

    def pause_all(self, fault: str, running: Collection[str]) -> None:
        """Pauses all running tournaments, because the database cannot be written.

        Args:
            fault: Why it cannot be written.
            running: Ids of the tournaments that run.
        """
        found = faults_of_database(fault, running)
        self._unrecorded |= {name: found[name] for name in found.keys() - self._faults.keys()}
        self._pause(found)

    def _pause(self, found: Mapping[str, StorageFault]) -> None:
        paused = {name: fault.pause_reason for name, fault in found.items() if fault.pause_reason}
        if paused != self._runtime.paused:
            self._runtime.paused = paused
            self._runtime.changes.notify_all()


def _has_reported(progress: pb.Progress) -> bool:
    """Whether a pod has begun with the work of its lease. Before, it may wait until the agent has been generated."""
    return bool(progress.activity or progress.storage_fault)


def record_changes(transaction: Transaction, began: Mapping[str, StorageFault], ended: Collection[str]) -> None:
    """Records that faults of tournaments began and ended."""
    for tournament_id, fault in began.items():
        remedy = DATABASE_REMEDY if fault.of_database else REMEDY
        transaction.record_event("storage_fault", f"{fault}; {remedy}", tournament_id=tournament_id)
    for tournament_id in ended:
        transaction.record_event("storage_recovered", "nothing waits for storage", tournament_id=tournament_id)
