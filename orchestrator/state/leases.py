"""Keeps the leases of all pods in memory: which pod holds what, until when, and what it last reported.

Pods renew their leases hundreds of times a second in total, so renewals are not written to the database. After a
restart each lease is granted again for one full duration. Only the methods that look at all pods get slower as the
number of pods grows. The event loop owns this state: no other thread may read or write it.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

from orchestrator.decisions.pool_size import PodActivity
from orchestrator.state.records import AgentRecord, WorkRecord
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

MOST_RENEWALS_PER_SECOND = 500.0
"""Upper limit of the renewals of all pods together. A pod renews three times per lease duration, so in a large pool
leases last longer than configured."""


@dataclass
class Lease:
    """An assignment that a pod holds."""

    work_id: str
    tournament_id: str
    pod_id: str
    lease_epoch: int
    expires: float
    """Monotonic time in seconds."""
    trains: bool
    """True for an agent, whose environment steps count; False for an evaluation."""
    progress: pb.Progress = field(default_factory=pb.Progress)
    """Reported with the latest renewal."""
    stuck_reports: int = 0
    """Number of the latest report of a stuck role that was recorded."""
    advanced: bool = False
    """Whether it was recorded that the pod has brought the agent further."""
    training_recorded: bool = False
    """Whether it was recorded that the pod trains the agent."""


class Leases:
    """The leases that are held now.

    leases = Leases(shortest_duration_seconds=10.0)
    leases.grant(agent, now)
    leases.renew(agent.agent_id, lease_epoch, progress, now)
    leases.release(agent.agent_id, lease_epoch)

    Attributes:
        held: Leases by the id of the agent or evaluation, expired ones included.
    """

    def __init__(self, shortest_duration_seconds: float) -> None:
        self._shortest_duration_seconds = shortest_duration_seconds
        self.held: dict[str, Lease] = {}
        self._by_pod: defaultdict[str, dict[str, Lease]] = defaultdict(dict)
        # Entries (time, work id, lease epoch). A renewal does not touch the heap: when an entry comes up, `expired`
        # either finds the lease expired or pushes its new expiry time.
        self._expiry_checks: list[tuple[float, str, int]] = []
        self._expired: dict[str, Lease] = {}
        # Reason by work id and lease epoch.
        self._yielding: dict[tuple[str, int], str] = {}
        # Steps per second that each pod reported last.
        self._speeds: dict[str, float] = {}

    @property
    def duration_seconds(self) -> float:
        """Duration of a lease that is granted or renewed now."""
        return max(self._shortest_duration_seconds, 3 * len(self.held) / MOST_RENEWALS_PER_SECOND)

    # --- changes ----------------------------------------------------------------------------------------------

    def grant(self, work: WorkRecord, now: float) -> None:
        """Grants a lease on work that was just assigned to a pod, and ends the previous lease on it.

        Has no effect if a lease with a later epoch is known. `now` is monotonic.
        """
        earlier = self.held.get(work.work_id)
        if earlier and earlier.lease_epoch > work.lease_epoch:
            return
        repeated = earlier is not None and earlier.lease_epoch == work.lease_epoch and work.work_id not in self._expired
        if earlier:
            self.release(earlier.work_id, earlier.lease_epoch)
        trains = isinstance(work, AgentRecord)
        lease = Lease(
            work_id=work.work_id,
            tournament_id=work.tournament_id,
            pod_id=work.pod_id,
            lease_epoch=work.lease_epoch,
            expires=now + self.duration_seconds,
            trains=trains,
            # The pod's last known speed is used until its first report, which a short assignment may never send.
            progress=pb.Progress(steps_per_second=self._speeds.get(work.pod_id, 0.0) if trains else 0.0),
        )
        self.held[work.work_id] = self._by_pod[work.pod_id][work.work_id] = lease
        if not repeated:
            self._schedule_expiry_check(lease)

    def renew(self, work_id: str, lease_epoch: int, progress: pb.Progress, now: float) -> Lease | None:
        """Extends a lease, expired or not, and stores the progress that its pod reports.

        Returns:
            The lease; None if no such lease is held under this epoch.
        """
        lease = self.held.get(work_id)
        if lease is None or lease.lease_epoch != lease_epoch:
            return None
        lease.expires = now + self.duration_seconds
        lease.progress = progress
        if self._expired.pop(work_id, None):
            self._schedule_expiry_check(lease)
        if lease.trains:
            self._speeds[lease.pod_id] = progress.steps_per_second
        return lease

    def release(self, work_id: str, lease_epoch: int) -> None:
        """Ends the lease on work whose assignment was completed; ignored for another epoch."""
        lease = self.held.get(work_id)
        if lease and lease.lease_epoch == lease_epoch:
            del self.held[work_id], self._by_pod[lease.pod_id][work_id]
            self._expired.pop(work_id, None)
            self._yielding.pop((work_id, lease_epoch), None)

    def request_yield(self, work_id: str, reason: str) -> None:
        """Lets the pod that holds work give it back with its next renewal, because the pod is needed for other work."""
        if lease := self.held.get(work_id):
            self._yielding[work_id, lease.lease_epoch] = reason

    def yield_reason(self, work_id: str, lease_epoch: int) -> str:
        """Why the pod must give work back; empty if it may keep it."""
        return self._yielding.get((work_id, lease_epoch), "")

    def release_pod(self, pod_id: str) -> None:
        """Ends all leases of a pod that is gone."""
        self._speeds.pop(pod_id, None)
        for lease in self.of_pod(pod_id):
            self.release(lease.work_id, lease.lease_epoch)
        self._by_pod.pop(pod_id, None)

    # --- queries ----------------------------------------------------------------------------------------------

    def of_pod(self, pod_id: str) -> list[Lease]:
        """Leases of a pod, the newest last."""
        return list(self._by_pod[pod_id].values()) if pod_id in self._by_pod else []

    def latest_of_pod(self, pod_id: str) -> Lease | None:
        """The newest lease of a pod, which is what it works on: a restarted pod may also hold older leases."""
        return next(reversed(self._by_pod.get(pod_id, {}).values()), None)

    def pod_activity(self, pod_id: str, now: float) -> PodActivity:
        """What a pod does, according to its latest report."""
        lease = self.latest_of_pod(pod_id)
        if lease is None:
            return PodActivity()
        reported = lease.progress
        publishing = reported.activity == pb.POD_ACTIVITY_PUBLISHING and now < lease.expires
        return PodActivity(True, publishing, reported.score if lease.trains and reported.HasField("score") else None)

    def is_training(self, tournament_id: str, now: float) -> bool:
        """Whether a pod holds a valid lease on an agent of this tournament."""
        return any(
            lease.trains and lease.tournament_id == tournament_id and now < lease.expires
            for lease in self.held.values()
        )

    def expired(self, now: float) -> frozenset[tuple[str, int]]:
        """Leases that were not renewed in time, as pairs of work id and lease epoch."""
        while self._expiry_checks and self._expiry_checks[0][0] <= now:
            _, work_id, lease_epoch = heapq.heappop(self._expiry_checks)
            lease = self.held.get(work_id)
            if lease is None or lease.lease_epoch != lease_epoch:
                continue
            if lease.expires <= now:
                self._expired[work_id] = lease
            else:
                self._schedule_expiry_check(lease)
        return frozenset((lease.work_id, lease.lease_epoch) for lease in self._expired.values())

    def steps_per_second(self, tournament_id: str, now: float) -> float:
        """Environment steps per second over all pods of a tournament whose leases are valid."""
        return sum(
            lease.progress.steps_per_second
            for lease in self.held.values()
            if lease.tournament_id == tournament_id and now < lease.expires
        )

    def _schedule_expiry_check(self, lease: Lease) -> None:
        heapq.heappush(self._expiry_checks, (lease.expires, lease.work_id, lease.lease_epoch))
