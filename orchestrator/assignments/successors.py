"""Assigns work to launched pods, some of which replace a pod of another size and take its agent over.

The agent changes pods in this order, so that no two pods train it: the new pod reports that it is ready; the old one is
asked to stop, publishes its last checkpoint and gives the agent back; the agent, which no other pod may get in that
time, is assigned to the new pod under the next lease epoch. If the old pod died or lost its lease, the epoch keeps it
from publishing, as with any other agent.
"""

from collections import OrderedDict
from dataclasses import dataclass

import prometheus_client

from orchestrator.assignments import transactions
from orchestrator.assignments.transactions import AssignedWork, DispatchInputs
from orchestrator.decisions import dispatch
from orchestrator.decisions.dispatch import Holder
from orchestrator.pool import resizes
from orchestrator.state import pauses, records, resize_records
from orchestrator.state.database import StateDatabase, Transaction
from orchestrator.state.leases import Lease
from orchestrator.state.records import AgentRecord, PodPhase, PodRecord, TournamentRecord, WorkPhase
from orchestrator.state.resize_records import ResizePhase, ResizeRecord
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

MOST_ENDS = 1000
"""Agents that were given back and whose last update is remembered."""
RESIZE_GAP = prometheus_client.Histogram(
    "podrace_orchestrator_resize_gap_seconds",
    "Time in which nothing was trained while an agent moved to a pod of another size",
)


@dataclass(frozen=True)
class Prepare:
    """The pod must open its roles for an agent that another pod still trains."""

    tournament: TournamentRecord
    agent: AgentRecord


Answer = AssignedWork | Prepare | dispatch.Wait | dispatch.Drain


def assign_work(
    transaction: Transaction, requester: Holder, inputs: DispatchInputs, prepared_agent_id: str = ""
) -> Answer:
    """Decides what a launched pod that requests work gets, and stores it.

    Args:
        transaction: The transaction to write in.
        requester: The pod.
        inputs: State in memory.
        prepared_agent_id: Agent for which the pod is ready; empty: for none.
    """
    pod = records.find(transaction, PodRecord, requester.pod_id)
    resize = resize_records.of_pod(transaction, requester.pod_id) if pod else None
    if pod and resize and pod.phase != PodPhase.GONE and not pod.drain_reason:
        answer = _answer_new_pod(transaction, resize, requester, inputs, prepared_agent_id)
        if answer is not None:
            return answer
    return transactions.assign_work(transaction, requester, inputs)


def _answer_new_pod(
    transaction: Transaction, resize: ResizeRecord, requester: Holder, inputs: DispatchInputs, prepared: str
) -> Answer | None:
    """Returns the answer to the new pod of a resize; None if the resize has ended, so that any work will do."""
    tournament = records.find_tournament(transaction, resize.tournament_id)
    if end_reason := pauses.why_not_trained(transaction, tournament):
        resizes.abandon(transaction, resize, end_reason)
        return None
    if resize.phase == ResizePhase.WARMING:
        return _answer_warming(transaction, resize, tournament, prepared)
    return _answer_ready(transaction, resize, tournament, requester, inputs)


def _answer_warming(
    transaction: Transaction, resize: ResizeRecord, tournament: TournamentRecord, prepared: str
) -> Answer | None:
    agent = resize_records.agent_of(transaction, resize)
    if agent is None or agent.agent is None:
        old = records.find(transaction, PodRecord, resize.predecessor_id)
        if old is not None and old.phase != PodPhase.GONE and not old.drain_reason:
            return dispatch.Wait(f"{resize.predecessor_id} is between two agents")
        resizes.finish_without_agent(transaction, resize)
        return None
    if resizes.abandon_other_trial(transaction, resize, agent):
        return None
    if prepared != agent.agent_id:
        return Prepare(tournament, agent)
    resizes.get_ready(transaction, resize, agent)
    return dispatch.Wait(f"{resize.predecessor_id} is asked to stop")


def _answer_ready(
    transaction: Transaction,
    resize: ResizeRecord,
    tournament: TournamentRecord,
    requester: Holder,
    inputs: DispatchInputs,
) -> Answer | None:
    agent = records.find(transaction, AgentRecord, resize.agent_id)
    if agent is None or agent.phase != WorkPhase.UNFINISHED:
        resizes.finish_without_agent(transaction, resize)
        return None
    reason = dispatch.why_free(transactions.work_item(transaction, agent, inputs), requester)
    if not reason and agent.pod_id == resize.predecessor_id:
        return dispatch.Wait(f"{resize.predecessor_id} publishes its last checkpoint")
    if not reason:
        resizes.finish_without_agent(transaction, resize)
        return None
    resizes.hand_over(transaction, resize)
    assigned = transactions.assign(transaction, agent, requester, f"it replaces {resize.predecessor_id}")
    return AssignedWork(tournament, assigned)


class TrainingGaps:
    """Measures for how long nothing trains an agent that changes pods. Pods report ages, so clocks need not agree.

    gaps.ended(agent_id, progress, now)               # the last report under a lease
    await gaps.resumed(lease, progress, now)          # every report under the next one
    """

    def __init__(self, state: StateDatabase) -> None:
        """Starts without agents.

        Args:
            state: Receives the gap of a resize.
        """
        self._state, self._last_update = state, OrderedDict[str, float]()

    def ended(self, work_id: str, progress: pb.Progress, now: float) -> None:
        """Remembers when the agent was updated last; `now` is monotonic."""
        if progress.HasField("update_age_seconds"):
            self._last_update[work_id] = now - progress.update_age_seconds
            while len(self._last_update) > MOST_ENDS:
                self._last_update.popitem(last=False)

    async def resumed(self, lease: Lease | None, progress: pb.Progress, now: float) -> None:
        """Records the first report of training under a lease: if the agent was handed over, the resize is done.

        How long nothing was trained is known if the old pod gave the agent back to this orchestrator.
        """
        if lease is None or lease.training_recorded or not progress.HasField("training_age_seconds"):
            return
        ended = self._last_update.get(lease.work_id)
        gap = None if ended is None else max(0.0, now - progress.training_age_seconds - ended)
        resize = await self._state.transact(resizes.finish, lease.pod_id, lease.work_id, gap)
        # Only now: if it could not be recorded, the next report is used.
        lease.training_recorded = True
        self._last_update.pop(lease.work_id, None)
        if resize and resize.gap_seconds is not None:
            RESIZE_GAP.observe(resize.gap_seconds)
