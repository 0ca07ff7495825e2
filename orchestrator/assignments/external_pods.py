"""Owns pods that come by themselves: who is there, and which tournament each of them works for next.

A pod that a launcher started belongs to one tournament and goes with it. A visitor belongs to nobody: it has a record
while it works for a tournament, and is offered another one whenever it asks and holds nothing. What a pod is
(processors, memory, layout) is its own affair; here every visitor is one place.
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
from orchestrator.decisions.pool_size import Action, Demand, Limits, PodView, PoolShort
from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.pool import pod_lifecycle
from orchestrator.pool.reconciler import PoolRules, demand_of
from orchestrator.state import records
from orchestrator.state.clock import Clock
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.records import EXTERNAL_POD_NUMBER, PodPhase, PodRecord
from orchestrator.state.runtime import RuntimeState
from podrace.tournament.v1 import tournament_pb2

EXTERNAL_POD_RESOURCES = Resources(1.0, 0, 0)
"""What a visitor counts as."""
PRESENCE_SECONDS = 5.0
"""Between two calls a pod is silent no longer than this."""
RETURN_SECONDS = 60.0
"""A pod whose lease expired, and whose agent nobody else took, may come back within this time and go on."""
NO_WORK = "no tournament has work for another pod"
RESTARTED = "it began anew without giving back what it held"


class ExternalPods:
    """Who comes, and what each is given.

    with visitors.asks(pod_id):
        answer = await visitors.hand_out(Holder(pod_id, incarnation))
    """

    def __init__(self, state: StateDatabase, runtime: RuntimeState, clock: Clock) -> None:
        """Whoever was recorded by an earlier life of this service may still be there."""
        self._state, self._runtime, self._clock = state, runtime, clock
        now = clock.monotonic()
        self._heard = dict.fromkeys(runtime.cache.pods, now)
        self._waiting: Counter[str] = Counter()
        # Two that are placed at once would take the same place.
        self._turn = asyncio.Lock()

    # --- who is there -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def waiting_call(self, pod_id: str) -> Iterator[None]:
        """A pod asks, and is there until it is answered, or hangs up, and a little longer."""
        self._waiting[pod_id] += 1
        try:
            yield
        finally:
            self._waiting[pod_id] -= 1
            self._waiting += Counter()
            self._heard[pod_id] = self._clock.monotonic()

    def present(self) -> frozenset[str]:
        """Pods that ask, have asked just now, or hold a lease that is valid."""
        now = self._clock.monotonic()
        self._heard = {pod_id: then for pod_id, then in self._heard.items() if now - then < PRESENCE_SECONDS}
        holding = (held.pod_id for held in self._runtime.leases.held.values() if now < held.expires)
        return frozenset((*self._waiting, *self._heard, *holding))

    def expected(self) -> list[PodRecord]:
        """Recorded pods that are there, or may come back to what they hold."""
        now, present = self._clock.monotonic(), self.present()
        return [
            pod
            for pod in self._runtime.cache.pods.values()
            if pod.pod_id in present
            or any(now < held.expires + RETURN_SECONDS for held in self._runtime.leases.of_pod(pod.pod_id))
        ]

    def count(self) -> int:
        """How many there are, those included that may come back: nobody else pays for their absence."""
        return len(self.present().union(pod.pod_id for pod in self.expected()))

    # --- what they are given ----------------------------------------------------------------------------------

    async def assign_work(self, requester: Holder) -> AssignedWork | dispatch.Wait:
        """What a visitor gets: work of the tournament that has fewest pods for what it is entitled to."""
        async with self._turn:
            if requester.pod_id in self._runtime.cache.pods and await self._state.transact(
                close_stale_record, requester
            ):
                self._runtime.release_pod(requester.pod_id)
            for tournament_id in self._preferred_tournaments(requester.pod_id):
                answer = await self._state.transact(
                    assign_external, requester, tournament_id, self._dispatch_inputs(requester, tournament_id)
                )
                if isinstance(answer, AssignedWork):
                    return answer
        return dispatch.Wait(NO_WORK)

    def _preferred_tournaments(self, pod_id: str) -> list[str]:
        cache, present = self._runtime.cache, self.present()
        demands = [
            demand_of(found, evaluating=bool(cache.evaluations(found.tournament_id)), not_before=0.0)
            for found in cache.active()
            if found.state == records.RUNNING or cache.evaluations(found.tournament_id)
        ]
        others = Counter(
            pod.tournament_id
            for pod in cache.pods.values()
            if pod.pod_id != pod_id and pod.pod_id in present and not pod.drain_reason
        )
        own = cache.pods.get(pod_id)
        if own and cache.held(pod_id):
            # Its last answer was lost.
            return [own.tournament_id]
        return preferences(own.tournament_id if own else "", others, shares(self.count(), demands))

    def _dispatch_inputs(self, requester: Holder, tournament_id: str) -> DispatchInputs:
        expired = self._runtime.leases.expired(self._clock.monotonic())
        names = [work_id for work_id, _ in expired]
        works = self._runtime.cache.assignable_in_tournament(tournament_id, requester.pod_id, names)
        return DispatchInputs(expired, dict(self._runtime.judged_rounds), works)


# --- decisions, pure ---------------------------------------------------------------------------------------------


def shares(external_pods: int, demands: Sequence[Demand]) -> Mapping[str, int]:
    """How many visitors each tournament is entitled to."""
    unoccupied = Capacity(Resources(float(external_pods), 0, 0), 0).unoccupied
    return pool_size.share(unoccupied, [as_external_demand(each) for each in demands])


def as_external_demand(asked: Demand) -> Demand:
    """What a tournament asks for, counted in visitors: each is one place, and they come at a pace of their own."""
    return replace(asked, pod=EXTERNAL_POD_RESOURCES, step_pods=None, cooldown_seconds=0.0, granted=None)


def preferences(here: str, others: Mapping[str, int], entitled: Mapping[str, int]) -> list[str]:
    """Tournaments that a visitor may work for, the neediest first.

    Of two with as few pods the one that it does not come from is first, so that a single pod takes turns.

    Args:
        here: The tournament it worked for last; empty for none.
        others: How many other visitors work for each tournament.
        entitled: From `shares`, oldest tournament first.
    """
    wanting = [name for name, count in entitled.items() if others.get(name, 0) < count]
    return sorted(wanting, key=lambda name: (others.get(name, 0), name == here))


def decide_external(
    now: float, capacity: Capacity, demands: Sequence[Demand], views: Sequence[PodView], limits: Limits
) -> tuple[list[Action], str]:
    """As scale.decide, for pods that can neither be started nor pressed: they are told to give back what they hold.

    Args:
        now: Monotonic time.
        capacity: As many cores as there are visitors.
        demands: From `as_places`.
        views: ExternalPods that work for a tournament.
        limits: Not asked.

    Returns:
        What to do, and the whole in a line.
    """
    patient = replace(limits, start_pods=False, terminate_seconds=math.inf, kill_seconds=math.inf)
    actions, line = pool_size.decide(now, capacity, demands, views, patient)
    staying = Counter(view.tournament_id for view in views if view.drained_since is None)
    there = f"there are {capacity.total.cores:g}; start more"
    return [
        *actions,
        *(
            PoolShort(each.tournament_id, f"{staying[each.tournament_id]} of {each.minimum_pods} pods: {there}")
            for each in demands
            if staying[each.tournament_id] < each.minimum_pods
        ),
    ], line


EXTERNAL_POD_RULES = PoolRules(decide_external, as_external_demand)
"""For pods that come by themselves."""


# --- changes, each in one transaction ----------------------------------------------------------------------------


def close_stale_record(transaction: Transaction, requester: Holder) -> bool:
    """Ends what a visitor that asks cannot go on with; says whether its record is closed.

    That is the work of an earlier life of it, which died with it; and anything at all if it was told to give it back.
    """
    pod = records.find(transaction, PodRecord, requester.pod_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return True
    held = pod_lifecycle.held_by(transaction, pod)
    if any(work.incarnation != requester.incarnation for work in held):
        pod_lifecycle.mark_gone(transaction, pod.pod_id, RESTARTED)
        return True
    ended = records.find_tournament(transaction, pod.tournament_id).end_reason
    if pod.drain_reason or (ended and not held):
        records.save(transaction, replace(pod, drain_reason=pod.drain_reason or ended))
        pod_lifecycle.mark_gone(transaction, pod.pod_id, "")
        return True
    return False


def assign_external(
    transaction: Transaction, requester: Holder, tournament_id: str, inputs: DispatchInputs
) -> AssignedWork | dispatch.Wait | dispatch.Drain:
    """Gives a visitor work of this tournament, if there is any; from then on it works for it."""
    answer = transactions.assign_from_tournament(transaction, tournament_id, requester, inputs)
    pod = records.find(transaction, PodRecord, requester.pod_id)
    there = pod is not None and pod.phase != PodPhase.GONE and pod.tournament_id == tournament_id
    if not isinstance(answer, AssignedWork) or there:
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
    message = f"{requester.pod_id} came by itself and works for it, as it is: `pod` of the specification is not asked"
    transaction.record("pod_joined", message, tournament_id=tournament_id, pod_id=requester.pod_id)
    return answer
