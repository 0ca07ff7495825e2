"""Tracks external pods, which are started outside the orchestrator, and decides which tournament each works for.

A pod that a launcher started belongs to one tournament and ends with it. An external pod belongs to no tournament: it
has a record while it works for one, and may be assigned to another whenever it requests work and holds none. Its
processors, memory and layout are not known here; every external pod counts as one unit of capacity.
"""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.assignments import transactions
from orchestrator.assignments.transactions import AssignedWork, DispatchInputs
from orchestrator.decisions import dispatch, pool_size
from orchestrator.decisions.dispatch import Holder
from orchestrator.decisions.fair_share import Demand, share
from orchestrator.decisions.pool_size import Action, Limits, PodView, PoolShort
from orchestrator.decisions.quotas import NO_QUOTAS, Quotas
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.pool import pod_lifecycle
from orchestrator.pool.demands import demand_of, owner_share
from orchestrator.pool.pod_deaths import Death
from orchestrator.pool.pool_rules import PoolRules
from orchestrator.state import pauses, records
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EXTERNAL_POD_NUMBER, PodPhase, PodRecord
from orchestrator.state.runtime import RuntimeState
from podrace.tournament.v1 import tournament_pb2

EXTERNAL_POD_RESOURCES = Resources(1.0, 0, 0)
"""What an external pod counts as: one unit of capacity."""
PRESENCE_SECONDS = 5.0
"""A pod counts as present for this long after its last call."""
RETURN_SECONDS = 60.0
"""A pod whose lease expired may return within this time and resume its agent, unless that was assigned again."""
NO_WORK = "no tournament has work for another pod"
RESTARTED = "it restarted without giving back its work"


class ExternalPods:
    """Tracks which external pods are present, and assigns work to them.

    with external_pods.waiting_call(pod_id):
        answer = await external_pods.assign_work(Holder(pod_id, incarnation))
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, clock: Clock, quotas: Quotas = NO_QUOTAS) -> None:
        """Creates the tracker; pods that a previous run recorded count as present at first."""
        self._state, self._runtime, self._clock, self._quotas = state, runtime, clock, quotas
        now = clock.monotonic()
        self._last_calls = dict.fromkeys(runtime.cache.pods, now)
        self._waiting: Counter[str] = Counter()
        # Two pods that are assigned at the same time would both take the same free place.
        self._lock = asyncio.Lock()

    # --- presence ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def waiting_call(self, pod_id: str) -> Iterator[None]:
        """Marks a pod as present while it waits for an answer, and for PRESENCE_SECONDS after."""
        self._waiting[pod_id] += 1
        try:
            yield
        finally:
            self._waiting[pod_id] -= 1
            self._waiting += Counter()
            self._last_calls[pod_id] = self._clock.monotonic()

    def present(self) -> frozenset[str]:
        """Ids of pods that wait for an answer, called recently, or hold a valid lease."""
        now = self._clock.monotonic()
        self._last_calls = {pod_id: then for pod_id, then in self._last_calls.items() if now - then < PRESENCE_SECONDS}
        holding = (held.pod_id for held in self._runtime.leases.held.values() if now < held.expires)
        return frozenset((*self._waiting, *self._last_calls, *holding))

    def expected(self) -> list[PodRecord]:
        """Records of pods that are present, or may return to the work they hold."""
        now, present = self._clock.monotonic(), self.present()
        return [
            pod
            for pod in self._runtime.cache.pods.values()
            if pod.pod_id in present
            or any(now < held.expires + RETURN_SECONDS for held in self._runtime.leases.of_pod(pod.pod_id))
        ]

    def count(self) -> int:
        """Number of pods, including those that may return, so that their absence does not shrink other pools."""
        return len(self.present().union(pod.pod_id for pod in self.expected()))

    # --- assignment -------------------------------------------------------------------------------------------

    async def assign_work(self, requester: Holder) -> AssignedWork | dispatch.Wait:
        """Assigns work of the tournament with the fewest pods, among those that have fewer than their share."""
        async with self._lock:
            if requester.pod_id in self._runtime.cache.pods:
                await self._close_stale_record(requester)
            for tournament_id in self._preferred_tournaments(requester.pod_id):
                answer = await self._state.transact(
                    assign_external, requester, tournament_id, self._dispatch_inputs(requester, tournament_id)
                )
                if isinstance(answer, AssignedWork):
                    return answer
        return dispatch.Wait(NO_WORK)

    async def _close_stale_record(self, requester: Holder) -> None:
        closed = await self._state.transact(close_stale_record, requester)
        if closed is None:
            return
        self._runtime.release_pod(requester.pod_id)
        if closed.failed_agent:
            self._runtime.counters.count_failure(closed.tournament_id)

    def _preferred_tournaments(self, pod_id: str) -> list[str]:
        cache, present = self._runtime.cache, self.present()
        demands = [
            demand_of(
                found,
                training=pauses.is_training(cache, found),
                evaluating=bool(cache.unfinished_evaluations(found.tournament_id)),
                not_before=0.0,
                owner=owner_share(cache, self._quotas, found.tournament_id),
            )
            for found in cache.active_tournaments()
            if pauses.is_training(cache, found) or cache.unfinished_evaluations(found.tournament_id)
        ]
        others = Counter(
            pod.tournament_id
            for pod in cache.pods.values()
            if pod.pod_id != pod_id and pod.pod_id in present and not pod.drain_reason
        )
        own = cache.pods.get(pod_id)
        if own and cache.held_work_ids(pod_id):
            # The response to its previous request was lost.
            return [own.tournament_id]
        return preferences(own.tournament_id if own else "", others, shares(self.count(), demands))

    def _dispatch_inputs(self, requester: Holder, tournament_id: str) -> DispatchInputs:
        expired = self._runtime.leases.expired(self._clock.monotonic())
        names = [work_id for work_id, _ in expired]
        works = self._runtime.cache.assignable_in_tournament(tournament_id, requester.pod_id, names)
        return DispatchInputs(expired, dict(self._runtime.judged_rounds), works)


# --- decisions: pure functions -----------------------------------------------------------------------------------


def shares(external_pods: int, demands: Sequence[Demand]) -> Mapping[str, int]:
    """Computes how many external pods each tournament should have."""
    unoccupied = Capacity(Resources(float(external_pods), 0, 0), 0).unoccupied
    return share(unoccupied, [as_external_demand(each) for each in demands])


def as_external_demand(demand: Demand) -> Demand:
    """Converts the demand of a tournament to units of external pods, without steps and cooldown."""
    return replace(demand, pod=EXTERNAL_POD_RESOURCES, step_pods=None, cooldown_seconds=0.0, granted=None)


def preferences(current: str, others: Mapping[str, int], entitled: Mapping[str, int]) -> list[str]:
    """Orders the tournaments that an external pod may work for, the one that needs it most first.

    Among tournaments with equally many pods, the one that the pod worked for last comes last, so that a single pod
    alternates between them.

    Args:
        current: The tournament that the pod worked for last; empty if there is none.
        others: Number of other external pods that work for each tournament.
        entitled: The result of `shares`, oldest tournament first.
    """
    wanting = [name for name, count in entitled.items() if others.get(name, 0) < count]
    return sorted(wanting, key=lambda name: (others.get(name, 0), name == current))


def decide_external(
    now: float, capacity: Capacity, demands: Sequence[Demand], views: Sequence[PodView], limits: Limits
) -> tuple[list[Action], str]:
    """Like `pool_size.decide`, for pods that cannot be started or killed: surplus pods are drained.

    Args:
        now: Monotonic time.
        capacity: As many cores as there are external pods.
        demands: The results of `as_external_demand`.
        views: External pods that work for a tournament.
        limits: Ignored, because no pod is started or killed.

    Returns:
        The actions, and a summary in one line.
    """
    without_pressure = replace(limits, start_pods=False, terminate_seconds=math.inf, kill_seconds=math.inf)
    actions, line = pool_size.decide(now, capacity, demands, views, without_pressure)
    staying = Counter(view.tournament_id for view in views if view.drained_since is None)
    present = f"{capacity.total.cores:g} external pods are connected; start more"
    return [
        *actions,
        *(
            PoolShort(each.tournament_id, f"{staying[each.tournament_id]} of {each.minimum_pods} pods: {present}")
            for each in demands
            if staying[each.tournament_id] < each.minimum_pods
        ),
    ], line


EXTERNAL_POD_RULES = PoolRules(decide_external, as_external_demand)
"""Rules for external pods."""


# --- transactions ------------------------------------------------------------------------------------------------


def close_stale_record(transaction: Transaction, requester: Holder) -> Death | None:
    """Ends the work that a requesting external pod cannot continue.

    This is work that a previous run of the pod held, and all work of a pod that was asked to give it back.

    Returns:
        What follows, if the pod's record is closed; None if the pod continues.
    """
    pod = records.find(transaction, PodRecord, requester.pod_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return Death("")
    held = pod_lifecycle.held_by(transaction, pod)
    if any(work.incarnation != requester.incarnation for work in held):
        return pod_lifecycle.mark_gone(transaction, pod.pod_id, RESTARTED)
    ended = pauses.why_not_trained(transaction, records.find_tournament(transaction, pod.tournament_id))
    if pod.drain_reason or (ended and not held):
        records.save(transaction, replace(pod, drain_reason=pod.drain_reason or ended))
        return pod_lifecycle.mark_gone(transaction, pod.pod_id, "")
    return None


def assign_external(
    transaction: Transaction, requester: Holder, tournament_id: str, inputs: DispatchInputs
) -> AssignedWork | dispatch.Wait | dispatch.Drain:
    """Assigns work of this tournament to an external pod, if there is any, and records that the pod works for it."""
    answer = transactions.assign_from_tournament(transaction, tournament_id, requester, inputs)
    pod = records.find(transaction, PodRecord, requester.pod_id)
    works_there = pod is not None and pod.phase != PodPhase.GONE and pod.tournament_id == tournament_id
    if not isinstance(answer, AssignedWork) or works_there:
        return answer
    joined = PodRecord(
        pod_id=requester.pod_id,
        tournament_id=tournament_id,
        number=EXTERNAL_POD_NUMBER,
        phase=PodPhase.SEEN,
        start_time=transaction.now,
        layout=tournament_pb2.LAYOUT_FUSED,
        cores=EXTERNAL_POD_RESOURCES.cores,
        memory_bytes=EXTERNAL_POD_RESOURCES.memory_bytes,
        gpus=EXTERNAL_POD_RESOURCES.gpus,
        useful=False,
        drain_reason="",
    )
    records.save(transaction, joined)
    message = f"external pod {requester.pod_id} joined; the tournament's `pod` settings do not apply to it"
    transaction.record_event("pod_joined", message, tournament_id=tournament_id, pod_id=requester.pod_id)
    return answer
