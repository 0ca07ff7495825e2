"""Holds the state that is kept in memory only: leases, counters, running time, best candidates, and waiting calls.

What must survive a restart (environment steps, running time, evaluation epochs, best candidates) is saved every few
seconds with `save_changes`. The event loop owns this state: no other thread may read or write it.
"""

import asyncio
from collections.abc import Mapping

from orchestrator.state.best_candidates import BestCandidates
from orchestrator.state.cache import StateCache
from orchestrator.state.contacts import Contacts
from orchestrator.state.counters import Counters
from orchestrator.state.database import StateDatabase
from orchestrator.state.leases import Leases
from orchestrator.state.records import COMPLETED, AgentRecord, TournamentRecord, WorkRecord
from orchestrator.state.running_time import RunningTime
from orchestrator.state.saved_state import SavedState, UnsavedChanges, write_changes
from podrace.leaderboard.v1.leaderboard_pb2 import Incumbent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.ancestor import tournament_of
from podrace.tasks import ChangeSignal


class RuntimeState:
    """The state that is kept in memory only.

    Attributes:
        changes: Notified when something changed that a waiting pod or watcher may want to know.
        reconcile_requested: Set to start a reconcile cycle at once.
        leases: Assignments that pods hold.
        counters: Environment steps, failed agents and evaluation epochs.
        running_time: How long each tournament has been running.
        best: Best candidate of each tournament.
        connected_pods: Pods that have requested work.
        contacts: When pods called last.
        judged_rounds: By synchronous tournament, the number of rounds after which its objective was checked and not
            met.
        cache: Rows of the database that are kept in memory as well.
        stops: Agents that the strategy stops early, by id, with the reason, by tournament.
        incumbents: What the leaderboard reported last about the incumbent, by tournament.
        step_limits: Own environment steps at which an agent ends at the latest, by agent id and lease epoch.
        paused: Why tournaments are paused by faults of storage, by id; `cache.pauses` has those that users paused.
        restored_epoch: Epoch of backups with which the database was restored last; 0: it never was.
        unmanaged: Pods that run and whose tournaments the database does not know; None until pods were listed.
        registered: Tournaments that the leaderboard knows, as far as this process knows.
        without_space: Why no agent is generated for lack of space, by tournament.
        shortage: Why the disk of the database has too little space for further agents; empty: it has enough.
    """

    def __init__(self, lease_seconds: float) -> None:
        self.cache = StateCache()
        self.changes = ChangeSignal()
        self.reconcile_requested = asyncio.Event()
        self.leases = Leases(lease_seconds)
        self.counters = Counters()
        self.running_time = RunningTime()
        self.best = BestCandidates()
        self.connected_pods: set[str] = set()
        self.contacts = Contacts()
        self.judged_rounds: dict[str, int] = {}
        self.stops: dict[str, Mapping[str, str]] = {}
        self.incumbents: dict[str, Incumbent] = {}
        self.step_limits: dict[tuple[str, int], int] = {}
        self.paused: dict[str, str] = {}
        self.without_space: dict[str, str] = {}
        self.shortage = ""
        self.registered: set[str] = set()
        self.restored_epoch = 0
        self.unmanaged: frozenset[str] | None = None

    def restore(self, saved: SavedState, now: float) -> None:
        """Resumes where a previous run stopped; each lease is valid for one full duration from `now` (monotonic)."""
        self.restored_epoch = saved.restored_epoch
        self.cache.apply_saved([*saved.tournaments, *saved.ownerships, *saved.pauses, *saved.labels])
        self.cache.apply_saved([*saved.pods, *saved.works, *saved.failures])
        for tournament in saved.tournaments:
            self._restore_tournament(tournament)
        self.counters.restore(saved.steps, saved.failed_agents, saved.stopped_agents, saved.evaluation_epochs)
        for work in saved.works:
            if isinstance(work, AgentRecord):
                self.counters.restore_agent(work.agent_id, work.environment_steps)
            if work.pod_id:
                self.grant_lease(work, now)
        # Pods that have called before must call again. The others may still be starting: see `expect_first_call`.
        called = {work.pod_id for work in saved.works} | {pod.pod_id for pod in saved.pods if pod.useful}
        for pod in saved.pods:
            if pod.pod_id in called:
                self.contacts.record(pod.pod_id, now)

    def _restore_tournament(self, tournament: TournamentRecord) -> None:
        self.running_time.restore(tournament.tournament_id, tournament.running_seconds)
        if tournament.best:
            # A champion selected with fresh evaluations need not be the first of the board, which must not replace it.
            selected = tournament.state == COMPLETED and bool(tournament.spec.champion.reevaluate_top)
            self.best.restore(tournament.tournament_id, tournament.best, champion_selected=selected)

    def pause_reason(self, tournament_id: str) -> str:
        """Why the clock of a running tournament is paused; empty if it is not."""
        return self.cache.pauses.get(tournament_id) or self.paused.get(tournament_id, "")

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted."""
        self.judged_rounds.pop(tournament_id, None)
        self.stops.pop(tournament_id, None)
        self.incumbents.pop(tournament_id, None)
        self.registered.discard(tournament_id)
        self.paused.pop(tournament_id, None)
        self.without_space.pop(tournament_id, None)
        for agent_id, lease_epoch in list(self.step_limits):
            if tournament_of(agent_id) == tournament_id:
                del self.step_limits[agent_id, lease_epoch]
        self.counters.forget(tournament_id)
        self.running_time.forget(tournament_id)
        self.best.forget(tournament_id)

    def grant_lease(self, work: WorkRecord, now: float) -> None:
        """Grants a lease on work that was assigned to a pod; see `Leases.grant`."""
        self.leases.grant(work, now)
        if isinstance(work, AgentRecord):
            self.counters.restore_agent(work.agent_id, work.environment_steps)

    def renew_lease(self, work_id: str, lease_epoch: int, progress: pb.Progress, now: float) -> None:
        """Extends a lease and counts the steps that its pod reports; see `Leases.renew`."""
        lease = self.leases.renew(work_id, lease_epoch, progress, now)
        if lease:
            opening = progress.activity == pb.POD_ACTIVITY_OPENING
            self.contacts.record(lease.pod_id, now, opening=opening)
        if lease and lease.trains:
            self.counters.count_steps(lease.tournament_id, work_id, progress.environment_steps)

    def pod_that_holds(self, assignment_id: str) -> str:
        """Returns the pod that holds an assignment now; empty if it is unknown or no longer held under its epoch."""
        work_id, _, lease_epoch = assignment_id.rpartition(".")
        work = self.cache.works.get(work_id)
        return work.pod_id if work and str(work.lease_epoch) == lease_epoch else ""

    def release_pod(self, pod_id: str) -> None:
        """Ends all leases of a pod that is gone."""
        self.connected_pods.discard(pod_id)
        self.contacts.forget(pod_id)
        self.leases.release_pod(pod_id)

    def take_unsaved_changes(self) -> UnsavedChanges:
        """Returns what changed since the last call and must survive a restart."""
        return UnsavedChanges(
            self.counters.take_unsaved(),
            self.running_time.take_unsaved(),
            self.best.take_unsaved(),
            self.counters.take_unsaved_epochs(),
        )

    def mark_unsaved(self, changes: UnsavedChanges) -> None:
        """Includes changes that could not be saved in the next `take_unsaved_changes`, with their latest values."""
        self.counters.mark_unsaved(changes.agent_steps)
        self.running_time.mark_unsaved(changes.running_seconds)
        self.best.mark_unsaved(changes.best)
        self.counters.mark_unsaved_epochs(changes.evaluation_epochs)


async def save_changes(state: StateDatabase, runtime: RuntimeState) -> None:
    """Saves what changed and must survive a restart; changes that cannot be saved now are saved with the next call.

    Raises:
        PodraceError: The database cannot be written.
    """
    changes = runtime.take_unsaved_changes()
    try:
        await state.transact(write_changes, changes)
    except BaseException:
        runtime.mark_unsaved(changes)
        raise
