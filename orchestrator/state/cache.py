"""Keeps the latest committed records in memory: tournaments, unfinished work and pods that are not gone.

A pool is read far more often than it changes. Code that reads all of it, or reads it often (the reconcile loop, lease
renewals), reads this cache. Code that decides reads the rows it depends on in its transaction. Values that change all
the time (environment steps, running time, the best candidate) are outdated here: see `RuntimeState`. The event loop
owns this state.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from orchestrator.state.deletion_records import DeletedTournament
from orchestrator.state.records import (
    END_STATES,
    AgentRecord,
    EvaluationRecord,
    LabelsRecord,
    OwnershipRecord,
    PauseRecord,
    PodPhase,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)
from podrace.access.ownership import Ownership

FAILURES_KEPT = 200
"""Failed agents that are remembered per tournament, the latest; the generator receives their ids."""


class StateCache:
    """Tournaments, unfinished work and pods.

    state.on_saved(cache.apply_saved)
    for pod in cache.pods.values(): ...

    Attributes:
        tournaments: All tournaments, by id, oldest first.
        ownerships: The owners, by tournament.
        pauses: Why users have paused running tournaments, by tournament.
        labels: The labels of tournaments that have some, by tournament.
        pods: Pods that are not gone, by id, oldest first.
        works: Agents that are neither finished nor failed and evaluations that are not done, by id.
    """

    def __init__(self) -> None:
        self.tournaments: dict[str, TournamentRecord] = {}
        self.ownerships: dict[str, Ownership] = {}
        self.pauses: dict[str, str] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.pods: dict[str, PodRecord] = {}
        self.works: dict[str, WorkRecord] = {}
        self._agents: dict[str, dict[str, AgentRecord]] = {}
        self._evaluations: dict[str, dict[str, EvaluationRecord]] = {}
        self._ungenerated: defaultdict[str, set[str]] = defaultdict(set)
        self._failed: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=FAILURES_KEPT))
        # Ids of unfinished work: what no living pod holds, by tournament, and what pods hold, by pod.
        self._free: defaultdict[str, set[str]] = defaultdict(set)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._appliers: dict[type[Any], Callable[[Any], None]] = {
            TournamentRecord: self._apply_tournament,
            OwnershipRecord: self._apply_ownership,
            PauseRecord: self._apply_pause,
            LabelsRecord: self._apply_labels,
            DeletedTournament: self._apply_deleted,
            PodRecord: self._apply_pod,
            AgentRecord: self._apply_work,
            EvaluationRecord: self._apply_work,
        }

    def apply_saved(self, saved: Iterable[Any]) -> None:
        """Applies records that were committed, in the order of their commits."""
        for record in saved:
            self._appliers[type(record)](record)

    def ownership_of(self, tournament_id: str) -> Ownership | None:
        """The owner of a tournament; None if there is no such tournament."""
        return self.ownerships.get(tournament_id)

    def tournament_ids(self) -> Iterable[str]:
        """Ids of all tournaments, oldest first."""
        return self.tournaments

    def unfinished_agents(self, tournament_id: str) -> dict[str, AgentRecord]:
        """Agents of a tournament that are neither finished nor failed, by id, in order; read-only."""
        return self._agents.get(tournament_id, {})

    def generated_agents(self, tournament_id: str) -> int:
        """Number of agents of a tournament that the generator has made."""
        numbered = self.tournaments[tournament_id].next_agent if tournament_id in self.tournaments else 0
        return numbered - len(self._ungenerated[tournament_id])

    def failed_agent_ids(self, tournament_id: str) -> Sequence[str]:
        """Ids of the latest agents of a tournament that failed, in the order of their failures."""
        return tuple(self._failed.get(tournament_id, ()))

    def held_work_ids(self, pod_id: str) -> Collection[str]:
        """Ids of the work that is assigned to a pod; read-only."""
        return self._held.get(pod_id, ())

    def unfinished_evaluations(self, tournament_id: str) -> dict[str, EvaluationRecord]:
        """Evaluations of a tournament that are not done, by id, in order; read-only."""
        return self._evaluations.get(tournament_id, {})

    def active_tournaments(self) -> list[TournamentRecord]:
        """Tournaments that are running or ending, or have evaluations that are not done, oldest first."""
        return [
            tournament
            for tournament in self.tournaments.values()
            if tournament.state not in END_STATES or self.unfinished_evaluations(tournament.tournament_id)
        ]

    def assignable_work(self, pod_id: str, expired: Iterable[str]) -> Sequence[WorkRecord]:
        """All work that may be assigned to a pod: evaluations, then agents, each in order.

        This is the work that the pod itself holds, work that no living pod holds, and work whose lease has expired.

        Args:
            pod_id: The pod that requests work.
            expired: Ids of work whose lease has expired.
        """
        pod = self.pods.get(pod_id)
        return () if pod is None else self.assignable_in_tournament(pod.tournament_id, pod_id, expired)

    def assignable_in_tournament(self, tournament_id: str, pod_id: str, expired: Iterable[str]) -> Sequence[WorkRecord]:
        """Like `assignable_work`, for a pod that may work for the given tournament."""
        names = {*self._held.get(pod_id, ()), *self._free.get(tournament_id, ()), *expired}
        works = (self.works[name] for name in names if name in self.works)
        same = [work for work in works if work.tournament_id == tournament_id]
        return sorted(same, key=lambda work: (isinstance(work, AgentRecord), work.number))

    def _apply_tournament(self, tournament: TournamentRecord) -> None:
        self.tournaments[tournament.tournament_id] = tournament

    def _apply_ownership(self, record: OwnershipRecord) -> None:
        self.ownerships[record.tournament_id] = Ownership(record.owner, record.namespace)

    def _apply_pause(self, record: PauseRecord) -> None:
        self.pauses.pop(record.tournament_id, None)
        if record.reason:
            self.pauses[record.tournament_id] = record.reason

    def _apply_labels(self, record: LabelsRecord) -> None:
        self.labels[record.tournament_id] = json.loads(record.labels)

    def _apply_deleted(self, deleted: DeletedTournament) -> None:
        name = deleted.tournament_id
        for work_id in [work.work_id for work in self.works.values() if work.tournament_id == name]:
            del self.works[work_id]
        self.tournaments.pop(name, None)
        self.ownerships.pop(name, None)
        self.pauses.pop(name, None)
        self.labels.pop(name, None)
        self._agents.pop(name, None)
        self._evaluations.pop(name, None)
        self._ungenerated.pop(name, None)
        self._failed.pop(name, None)
        self._free.pop(name, None)

    def _apply_pod(self, pod: PodRecord) -> None:
        if pod.phase != PodPhase.GONE:
            self.pods[pod.pod_id] = pod
            return
        self.pods.pop(pod.pod_id, None)
        for work_id in self._held.pop(pod.pod_id, ()):
            self._free[self.works[work_id].tournament_id].add(work_id)

    def _apply_work(self, work: WorkRecord) -> None:
        before = self.works.get(work.work_id)
        if isinstance(work, AgentRecord):
            waiting = work.agent is None and work.phase == WorkPhase.UNFINISHED
            (self._ungenerated[work.tournament_id].add if waiting else self._ungenerated[work.tournament_id].discard)(
                work.work_id
            )
        if before is not None:
            self._held[before.pod_id].discard(work.work_id)
            self._free[work.tournament_id].discard(work.work_id)
        same: dict[str, Any] = (self._agents if isinstance(work, AgentRecord) else self._evaluations).setdefault(
            work.tournament_id, {}
        )
        if work.phase != WorkPhase.UNFINISHED:
            self.works.pop(work.work_id, None)
            same.pop(work.work_id, None)
            failed = self._failed[work.tournament_id]
            if isinstance(work, AgentRecord) and work.phase == WorkPhase.FAILED and work.work_id not in failed:
                failed.append(work.work_id)
            return
        self.works[work.work_id] = same[work.work_id] = work
        if work.pod_id in self.pods:
            self._held[work.pod_id].add(work.work_id)
        else:
            self._free[work.tournament_id].add(work.work_id)
