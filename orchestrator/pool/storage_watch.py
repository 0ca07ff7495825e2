"""Pauses tournaments while storage accepts none of their checkpoints, and records when faults begin and end."""

from collections.abc import Collection, Mapping

from orchestrator.decisions.storage_faults import Report, StorageFault, faults_of
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.runtime import RuntimeState
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.printable import printable

REMEDY = "pods keep the newest state of their agents and continue by themselves; free space or repair the store"


class StorageWatch:
    """Compares what pods report with what they reported in the cycle before.

    await watch.check(now, running_ids)
    runtime.paused         # reason by tournament
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState) -> None:
        self._state, self._runtime = state, runtime
        self._faults: Mapping[str, StorageFault] = {}

    async def check(self, now: float, running: Collection[str]) -> None:
        """Sets which tournaments are paused, and records events for faults that began or ended.

        Args:
            now: Monotonic time.
            running: Ids of the tournaments that run. No pod asks for an agent of another one any more.
        """
        reports = (
            Report(lease.tournament_id, lease.pod_id, printable(lease.progress.storage_fault))
            for lease in self._runtime.leases.held.values()
            if lease.trains and now < lease.expires and _has_reported(lease.progress)
        )
        self._runtime.without_space = {
            name: reason for name, reason in self._runtime.without_space.items() if name in running
        }
        found = faults_of(reports, self._runtime.without_space)
        paused = {name: fault.pause_reason for name, fault in found.items() if fault.pause_reason}
        changed = paused != self._runtime.paused
        self._runtime.paused = paused
        began, ended = found.keys() - self._faults.keys(), self._faults.keys() - found.keys()
        if began or ended:
            await self._state.transact(record_changes, {name: found[name] for name in sorted(began)}, sorted(ended))
        # Only now: if the events could not be recorded, the next cycle tries again.
        self._faults = found
        if began or ended or changed:
            self._runtime.changes.notify_all()


def _has_reported(progress: pb.Progress) -> bool:
    """Whether a pod has begun with the work of its lease. Before, it may wait until the agent has been generated."""
    return bool(progress.activity or progress.storage_fault)


def record_changes(transaction: Transaction, began: Mapping[str, StorageFault], ended: Collection[str]) -> None:
    """Records that faults of tournaments began and ended."""
    for tournament_id, fault in began.items():
        transaction.record_event("storage_fault", f"{fault}; {REMEDY}", tournament_id=tournament_id)
    for tournament_id in ended:
        transaction.record_event("storage_recovered", "no pod waits for storage", tournament_id=tournament_id)
