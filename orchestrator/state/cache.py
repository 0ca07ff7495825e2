"""Owns what of the database is in memory as well: tournaments, unfinished work and living pods, as last committed.

A pool is asked about far more often than it changes. What reads all of it, or reads it often (the reconcile loop, every
renewal), reads here; what decides reads the rows it decides on in its transaction. Belongs to the event loop. Counts
that grow all the time (steps, running seconds, the best candidate) are not kept up to date here: RuntimeState has them.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from orchestrator.state.records import (
    END_STATES,
    AgentRecord,
    EvaluationRecord,
    PodPhase,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)

FAILURES_KEPT = 200
"""Of each tournament, the latest: what the generator is told."""


class StateCache:
    """Tournaments, unfinished work, living pods.

    state.on_saved(roster.apply_saved)
    for pod in roster.pods.values(): ...

    Attributes:
        tournaments: All of them, by id, oldest first.
        pods: Those not gone, by id, oldest first.
        works: Agents neither finished nor failed, evaluations not done, by id.
    """

    def __init__(self) -> None:
        self.tournaments: dict[str, TournamentRecord] = {}
        self.pods: dict[str, PodRecord] = {}
        self.works: dict[str, WorkRecord] = {}
        self._agents: dict[str, dict[str, AgentRecord]] = {}
        self._evaluations: dict[str, dict[str, EvaluationRecord]] = {}
        self._failed: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=FAILURES_KEPT))
        # Ids of works: by tournament those that nobody living holds, by pod the others.
        self._free: defaultdict[str, set[str]] = defaultdict(set)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._appliers: dict[type[Any], Callable[[Any], None]] = {
            TournamentRecord: self._apply_tournament,
            PodRecord: self._apply_pod,
            AgentRecord: self._apply_work,
            EvaluationRecord: self._apply_work,
        }

    def apply_saved(self, saved: Iterable[Any]) -> None:
        """These records were committed, in this order."""
        for record in saved:
            self._appliers[type(record)](record)

    def agents(self, tournament_id: str) -> dict[str, AgentRecord]:
        """Agents of a tournament that are neither finished nor failed, by id, in order; not to be changed."""
        return self._agents.get(tournament_id, {})

    def failed(self, tournament_id: str) -> Sequence[str]:
        """The agents of a tournament that failed last, by id, in the order in which they did."""
        return tuple(self._failed.get(tournament_id, ()))

    def held(self, pod_id: str) -> Collection[str]:
        """Ids of the work that a living pod was given and has not given back; not to be changed."""
        return self._held.get(pod_id, ())

    def evaluations(self, tournament_id: str) -> dict[str, EvaluationRecord]:
        """Evaluations of a tournament that are not done, by id, in order; not to be changed."""
        return self._evaluations.get(tournament_id, {})

    def active(self) -> list[TournamentRecord]:
        """Tournaments that run or end, or have evaluations to be done, oldest first."""
        return [
            tournament
            for tournament in self.tournaments.values()
            if tournament.state not in END_STATES or self.evaluations(tournament.tournament_id)
        ]

    def assignable_work(self, pod_id: str, expired: Iterable[str]) -> Sequence[WorkRecord]:
        """All work that a pod may be given: evaluations, then agents, each in order.

        It is what the pod itself was given and has not given back, what nobody holds, or a pod that is gone, and what
        others have held too long.

        Args:
            pod_id: Who asks.
            expired: Works whose lease has expired.
        """
        pod = self.pods.get(pod_id)
        return () if pod is None else self.assignable_in_tournament(pod.tournament_id, pod_id, expired)

    def assignable_in_tournament(self, tournament_id: str, pod_id: str, expired: Iterable[str]) -> Sequence[WorkRecord]:
        """The same for a pod that may work for this tournament."""
        names = {*self._held.get(pod_id, ()), *self._free.get(tournament_id, ()), *expired}
        works = (self.works[name] for name in names if name in self.works)
        same = [work for work in works if work.tournament_id == tournament_id]
        return sorted(same, key=lambda work: (isinstance(work, AgentRecord), work.number))

    def _apply_tournament(self, tournament: TournamentRecord) -> None:
        self.tournaments[tournament.tournament_id] = tournament

    def _apply_pod(self, pod: PodRecord) -> None:
        if pod.phase != PodPhase.GONE:
            self.pods[pod.pod_id] = pod
            return
        self.pods.pop(pod.pod_id, None)
        for work_id in self._held.pop(pod.pod_id, ()):
            self._free[self.works[work_id].tournament_id].add(work_id)

    def _apply_work(self, work: WorkRecord) -> None:
        before = self.works.get(work.work_id)
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
