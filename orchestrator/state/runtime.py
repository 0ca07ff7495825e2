"""Owns what is known only while the orchestrator lives: leases, progress, running time, best candidates.

Pods renew hundreds of times a second all together, so renewals stay in memory; what must survive (steps, running time,
the best candidate) is written down every few seconds. Only what asks about all pods takes longer when there are more.
Belongs to the event loop: no other thread reads or writes it.
"""

import asyncio
import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.decisions.pool_size import PodStanding
from orchestrator.state import records
from orchestrator.state.cache import FAILURES_KEPT, Roster
from orchestrator.state.database import State, Transaction
from orchestrator.state.records import (
    COMPLETED,
    AgentRecord,
    EvaluationRecord,
    PodRecord,
    TournamentRecord,
    WorkPhase,
    WorkRecord,
)
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

MOST_RENEWALS_PER_SECOND = 500.0
"""Leases of a large pool last longer, so that their renewals, one each third of a lease, are no more than this."""


class Bell:
    """Wakes everybody who waits for something to change.

    change = bell.next()  # before looking, or a change meanwhile is missed
    if not there_yet():
        await change.wait()
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Is set by the next ring."""
        return self._event

    def ring(self) -> None:
        """Wakes everybody."""
        self._event.set()
        self._event = asyncio.Event()


@dataclass
class Lease:
    """An assignment that a pod holds."""

    work_id: str
    tournament_id: str
    pod_id: str
    lease_epoch: int
    expires: float
    """Monotonic."""
    trains: bool
    """It is an agent, not an evaluation: its steps count."""
    progress: pb.Progress = field(default_factory=pb.Progress)


@dataclass(frozen=True)
class Notes:
    """What is to be written down: steps by agent, running seconds and best candidate by tournament."""

    agent_steps: dict[str, int]
    running_seconds: dict[str, float]
    best: dict[str, Candidate]


class Live:
    """What is known only while the orchestrator lives.

    Attributes:
        bell: Rung when something changed that a waiting pod or watcher may want to know.
        wake: Set when the reconcile loop should look at once.
        leases: Assignments held, by the name of the work.
        asked: Pods that have asked for work.
        judged_rounds: Rounds after which the objective of a synchronous tournament was judged and not met.
        best: Last known best candidate, by tournament.
        roster: What of the database is in memory as well.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._shortest_lease_seconds = lease_seconds
        self.roster = Roster()
        self.bell = Bell()
        self.wake = asyncio.Event()
        self.leases: dict[str, Lease] = {}
        self.asked: set[str] = set()
        self.judged_rounds: dict[str, int] = {}
        self.best: dict[str, Candidate] = {}
        self._leases_of: defaultdict[str, dict[str, Lease]] = defaultdict(dict)
        # When each lease would have expired had it not been renewed since: looked at again then, not at each renewal.
        self._looks: list[tuple[float, str, int]] = []
        self._late: dict[str, Lease] = {}
        self._crowned: set[str] = set()
        self._agent_steps: dict[str, int] = {}
        self._tournament_steps: defaultdict[str, int] = defaultdict(int)
        self._failed_agents: defaultdict[str, int] = defaultdict(int)
        self._running_seconds: defaultdict[str, float] = defaultdict(float)
        # Running now, and since when that is not counted.
        self._uncounted_since: dict[str, float] = {}
        self._speeds: dict[str, float] = {}
        self._changed_agents: set[str] = set()
        self._changed_tournaments: set[str] = set()

    def restore(self, remembered: "Remembered", now: float) -> None:
        """Goes on where an earlier life ended; each lease lasts one full duration from now."""
        self.roster.note([*remembered.tournaments, *remembered.pods, *remembered.works, *remembered.failures])
        for tournament in remembered.tournaments:
            self._running_seconds[tournament.tournament_id] = tournament.running_seconds
            if tournament.best:
                self.best[tournament.tournament_id] = tournament.best
                # Named before the end: the first of the board may be somebody else.
                if tournament.state == COMPLETED and tournament.spec.champion.reevaluate_top:
                    self._crowned.add(tournament.tournament_id)
        self._tournament_steps.update(remembered.steps)
        self._failed_agents.update(remembered.failed_agents)
        for work in remembered.works:
            if isinstance(work, AgentRecord):
                self._agent_steps[work.agent_id] = work.environment_steps
            if work.pod_id:
                self.hold(work, now)

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts that is given or renewed now."""
        return max(self._shortest_lease_seconds, 3 * len(self.leases) / MOST_RENEWALS_PER_SECOND)

    # --- leases -----------------------------------------------------------------------------------------------

    def hold(self, work: WorkRecord, now: float) -> None:
        """A pod was given this work, and an earlier lease on it is over; ignored if a later one is known already."""
        earlier = self.leases.get(work.work_id)
        if earlier and earlier.lease_epoch > work.lease_epoch:
            return
        again = earlier is not None and earlier.lease_epoch == work.lease_epoch and work.work_id not in self._late
        if earlier:
            self.release(earlier.work_id, earlier.lease_epoch)
        trains = isinstance(work, AgentRecord)
        lease = Lease(
            work_id=work.work_id,
            tournament_id=work.tournament_id,
            pod_id=work.pod_id,
            lease_epoch=work.lease_epoch,
            expires=now + self.lease_seconds,
            trains=trains,
            # Until the first report: a short assignment may be over before it.
            progress=pb.Progress(steps_per_second=self._speeds.get(work.pod_id, 0.0) if trains else 0.0),
        )
        self.leases[work.work_id] = self._leases_of[work.pod_id][work.work_id] = lease
        if not again:
            self._look_at(lease)
        if isinstance(work, AgentRecord):
            self._agent_steps.setdefault(work.agent_id, work.environment_steps)

    def renew(self, work_id: str, lease_epoch: int, progress: pb.Progress, now: float) -> None:
        """Prolongs a lease, expired or not, and takes note of what its pod tells."""
        lease = self.leases.get(work_id)
        if lease is None or lease.lease_epoch != lease_epoch:
            return
        lease.expires = now + self.lease_seconds
        lease.progress = progress
        if self._late.pop(work_id, None):
            self._look_at(lease)
        if lease.trains:
            self._speeds[lease.pod_id] = progress.steps_per_second
            self.count_steps(lease.tournament_id, work_id, progress.environment_steps)

    def release(self, work_id: str, lease_epoch: int) -> None:
        """The work was given back, or is done."""
        lease = self.leases.get(work_id)
        if lease and lease.lease_epoch == lease_epoch:
            del self.leases[work_id], self._leases_of[lease.pod_id][work_id]
            self._late.pop(work_id, None)

    def release_pod(self, pod_id: str) -> None:
        """The pod is gone."""
        self.asked.discard(pod_id)
        self._speeds.pop(pod_id, None)
        for lease in self.leases_of(pod_id):
            self.release(lease.work_id, lease.lease_epoch)
        self._leases_of.pop(pod_id, None)

    def leases_of(self, pod_id: str) -> list[Lease]:
        """What a pod holds, the newest last."""
        return list(self._leases_of[pod_id].values()) if pod_id in self._leases_of else []

    def latest_lease(self, pod_id: str) -> Lease | None:
        """What a pod works on: of what it holds the newest, because a new life may hold what an earlier one left."""
        return next(reversed(self._leases_of.get(pod_id, {}).values()), None)

    def is_busy(self, pod_id: str) -> bool:
        """Whether a pod holds something."""
        return bool(self._leases_of.get(pod_id))

    def standing(self, pod_id: str, now: float) -> PodStanding:
        """What a pod is at, as far as it is heard of."""
        lease = self.latest_lease(pod_id)
        if lease is None:
            return PodStanding()
        told = lease.progress
        publishing = told.activity == pb.POD_ACTIVITY_PUBLISHING and now < lease.expires
        return PodStanding(True, publishing, told.score if lease.trains and told.HasField("score") else None)

    def is_training(self, tournament_id: str, now: float) -> bool:
        """Whether a pod works on an agent of this tournament, as far as anybody can know."""
        return any(
            lease.trains and lease.tournament_id == tournament_id and now < lease.expires
            for lease in self.leases.values()
        )

    def expired(self, now: float) -> frozenset[tuple[str, int]]:
        """Leases that were not renewed in time: names of the work with their epochs."""
        while self._looks and self._looks[0][0] <= now:
            _, work_id, lease_epoch = heapq.heappop(self._looks)
            lease = self.leases.get(work_id)
            if lease is None or lease.lease_epoch != lease_epoch:
                continue
            if lease.expires <= now:
                self._late[work_id] = lease
            else:
                self._look_at(lease)
        return frozenset((lease.work_id, lease.lease_epoch) for lease in self._late.values())

    def _look_at(self, lease: Lease) -> None:
        heapq.heappush(self._looks, (lease.expires, lease.work_id, lease.lease_epoch))

    # --- counting ---------------------------------------------------------------------------------------------

    def count_steps(self, tournament_id: str, agent_id: str, steps: int) -> None:
        """Takes note that an agent has taken so many steps; those it repeats after a loss are not counted again."""
        known = self._agent_steps.get(agent_id, 0)
        if steps > known:
            self._agent_steps[agent_id] = steps
            self._tournament_steps[tournament_id] += steps - known
            self._changed_agents.add(agent_id)

    def environment_steps(self, tournament_id: str) -> int:
        """Steps over all agents of a tournament."""
        return self._tournament_steps[tournament_id]

    def count_failure(self, tournament_id: str) -> None:
        """Takes note that an agent has failed."""
        self._failed_agents[tournament_id] += 1

    def failed_agents(self, tournament_id: str) -> int:
        """Agents of a tournament that have failed."""
        return self._failed_agents[tournament_id]

    def steps_per_second(self, tournament_id: str, now: float) -> float:
        """Steps a second over all pods of a tournament that were heard of lately."""
        return sum(
            lease.progress.steps_per_second
            for lease in self.leases.values()
            if lease.tournament_id == tournament_id and now < lease.expires
        )

    def run(self, tournament_ids: Iterable[str], seconds: float) -> None:
        """These tournaments were running for so long."""
        for tournament_id in tournament_ids:
            self._running_seconds[tournament_id] += seconds
            if tournament_id in self._uncounted_since:
                self._uncounted_since[tournament_id] += seconds
            self._changed_tournaments.add(tournament_id)

    def runs_on(self, tournament_ids: Iterable[str], now: float) -> None:
        """These tournaments, and no others, run from now on; `run` will count it."""
        self._uncounted_since = dict.fromkeys(tournament_ids, now)

    def running_seconds(self, tournament_id: str, now: float | None = None) -> float:
        """How long a tournament was running, pauses left out: when it was looked at last, or until now."""
        uncounted = 0.0 if now is None else max(0.0, now - self._uncounted_since.get(tournament_id, now))
        return self._running_seconds[tournament_id] + uncounted

    def learn_best(self, tournament_id: str, best: Candidate) -> bool:
        """Takes note of the best candidate; says whether it is another one than before."""
        if tournament_id in self._crowned or self.best.get(tournament_id) == best:
            return False
        self.best[tournament_id] = best
        self._changed_tournaments.add(tournament_id)
        return True

    def crown(self, tournament_id: str, champion: Candidate) -> None:
        """Takes note of the champion that was named; what the board says afterwards is not listened to."""
        self.learn_best(tournament_id, champion)
        self._crowned.add(tournament_id)

    def take_notes(self) -> Notes:
        """What has changed since the last time and must survive."""
        agents, tournaments = self._changed_agents, self._changed_tournaments
        self._changed_agents, self._changed_tournaments = set(), set()
        return Notes(
            {agent_id: self._agent_steps[agent_id] for agent_id in agents},
            {tournament_id: self._running_seconds[tournament_id] for tournament_id in tournaments},
            {tournament_id: self.best[tournament_id] for tournament_id in tournaments if tournament_id in self.best},
        )

    def give_back(self, notes: Notes) -> None:
        """These notes were taken and not written."""
        self._changed_agents.update(notes.agent_steps)
        self._changed_tournaments.update(notes.running_seconds)


async def write_down(state: State, live: Live) -> None:
    """Makes what has changed and must survive durable; what cannot be written now is in the next notes."""
    notes = live.take_notes()
    try:
        await state.transact(_write, notes)
    except BaseException:
        live.give_back(notes)
        raise


def _write(transaction: Transaction, notes: Notes) -> None:
    # One statement for all: between two, this thread would wait for the interpreter, thousands of times.
    transaction.execute(
        "UPDATE agents SET environment_steps = told.value FROM json_each(?) AS told WHERE agent_id = told.key",
        json.dumps(notes.agent_steps),
    )
    for tournament_id, seconds in notes.running_seconds.items():
        transaction.execute(
            "UPDATE tournaments SET running_seconds = ? WHERE tournament_id = ?", seconds, tournament_id
        )
    for tournament_id, best in notes.best.items():
        transaction.execute(
            "UPDATE tournaments SET best = ? WHERE tournament_id = ?", best.SerializeToString(), tournament_id
        )


@dataclass(frozen=True)
class Remembered:
    """What an earlier life wrote down."""

    tournaments: list[TournamentRecord]
    works: list[WorkRecord]
    steps: dict[str, int]
    """By tournament."""
    failed_agents: dict[str, int]
    """By tournament."""
    pods: Sequence[PodRecord] = ()
    """Those not gone."""
    failures: Sequence[AgentRecord] = ()
    """The latest agents that failed, oldest first."""


def remember(transaction: Transaction) -> Remembered:
    """Reads what an earlier life wrote down."""
    totals = transaction.execute("SELECT tournament_id, SUM(environment_steps) FROM agents GROUP BY tournament_id")
    failed = transaction.execute(
        "SELECT tournament_id, COUNT(*) FROM agents WHERE phase = ? GROUP BY tournament_id", WorkPhase.FAILED
    )
    return Remembered(
        records.select(transaction, TournamentRecord, "true ORDER BY sequence"),
        [
            *records.select(transaction, AgentRecord, "phase = ? ORDER BY number", WorkPhase.UNFINISHED),
            *records.select(transaction, EvaluationRecord, "phase = ? ORDER BY number", WorkPhase.UNFINISHED),
        ],
        {name: int(steps) for name, steps in totals},
        {name: int(agents) for name, agents in failed},
        records.live_pods(transaction),
        [failure for name, _ in failed for failure in _latest_failures(transaction, name)],
    )


def _latest_failures(transaction: Transaction, tournament_id: str) -> list[AgentRecord]:
    condition = "tournament_id = ? AND phase = ? ORDER BY number DESC LIMIT ?"
    latest = records.select(transaction, AgentRecord, condition, tournament_id, WorkPhase.FAILED, FAILURES_KEPT)
    return latest[::-1]
