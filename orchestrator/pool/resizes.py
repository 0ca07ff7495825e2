"""Records resizes: a pod of another size that takes an agent over from the pod that trains it.

    WARMING      the new pod starts, and opens its roles; the old one trains
    READY        the new pod is ready; the old one is asked to publish and stop, and the agent is kept for the new one
    HANDED_OVER  the new pod has the agent under a new lease epoch
    DONE         the new pod trains, or got no agent because that had ended; it is a pod like any other
    ABANDONED    the new pod is gone, or was not ready in time, or the tournament ended

If the new pod dies, the old one continues, or any other pod gets the agent. If the old pod dies, the new one gets the
agent at its last checkpoint. Every step is one transaction, so an orchestrator that restarts continues with it.
"""

from dataclasses import replace

from orchestrator.decisions.pod_sizes.changes import Resize
from orchestrator.decisions.pod_sizes.resized_pods import resized
from orchestrator.launchers.base import NewPod
from orchestrator.pool import pod_lifecycle
from orchestrator.state import records, resize_records
from orchestrator.state.database import Transaction
from orchestrator.state.records import AgentRecord, PodPhase, PodRecord
from orchestrator.state.resize_records import ResizePhase, ResizeRecord

WARMING_SECONDS = 120.0
"""A new pod that is not ready after this time is stopped; a simulator may have to compile."""


def begin(transaction: Transaction, tournament_id: str, change: Resize, scores: int) -> NewPod | None:
    """Records a pod of another size before it is started, and asks the pods to stop that make room for it.

    Returns:
        The pod to start; None if the pod to replace is gone or stops, or another resize is under way.
    """
    old = records.find(transaction, PodRecord, change.pod_id)
    if old is None or old.phase == PodPhase.GONE or old.drain_reason:
        return None
    if resize_records.under_way(transaction, tournament_id):
        return None
    tournament = records.find_tournament(transaction, tournament_id)
    spec = resized(tournament.spec, change.cores)
    new = pod_lifecycle.record_intent(transaction, tournament_id, f"it replaces {old.pod_id}", spec)
    began = transaction.now
    resize_records.save(
        transaction,
        ResizeRecord(new.pod_id, tournament_id, old.pod_id, change.agent_id, ResizePhase.WARMING, scores, began, None),
    )
    _record_event(
        transaction,
        "pod_resize_begun",
        new.pod_id,
        tournament_id,
        f"{new.pod_id} will replace {old.pod_id}: {change.reason}",
    )
    for pod_id in change.retired:
        pod_lifecycle.retire(transaction, pod_id, f"its cores go to {new.pod_id}: {change.reason}")
    return replace(new, replaces=old.pod_id, retired=change.retired)


def get_ready(transaction: Transaction, resize: ResizeRecord, agent: AgentRecord) -> None:
    """Records that the new pod is ready for an agent, and asks the old pod to publish and stop."""
    resize_records.save(transaction, replace(resize, phase=ResizePhase.READY, agent_id=agent.agent_id))
    new = records.find(transaction, PodRecord, resize.pod_id)
    if new is not None and new.phase == PodPhase.INTENDED:
        # It made a call, so it is running. If the launcher's next list does not have it, it has died, and the agent is
        # no longer reserved for it.
        records.save(transaction, replace(new, phase=PodPhase.SEEN))
    reason = f"{agent.agent_id} continues in {resize.pod_id}, which is ready"
    pod_lifecycle.retire(transaction, resize.predecessor_id, reason)


def abandon_other_trial(transaction: Transaction, resize: ResizeRecord, agent: AgentRecord) -> bool:
    """Abandons a growth if the old pod trains another trial by now; returns whether it does."""
    intended = records.find(transaction, AgentRecord, resize.agent_id) if resize.agent_id else None
    if intended is None or intended.trial == agent.trial:
        return False
    reason = f"{resize.predecessor_id} trains {agent.agent_id} by now, which does not continue {intended.agent_id}"
    abandon(transaction, resize, reason)
    pod_lifecycle.retire(transaction, resize.pod_id, reason)
    return True


def hand_over(transaction: Transaction, resize: ResizeRecord) -> None:
    """Records that the new pod has the agent; the event follows when it trains."""
    resize_records.save(transaction, replace(resize, phase=ResizePhase.HANDED_OVER))


def finish(transaction: Transaction, pod_id: str, agent_id: str, gap_seconds: float | None) -> ResizeRecord | None:
    """Records that a pod trains; has an effect once for a new pod that was handed an agent.

    Args:
        transaction: The transaction to write in.
        pod_id: The pod.
        agent_id: The agent that it trains.
        gap_seconds: For how long nothing trained this agent before; None if that is not known.

    Returns:
        The resize that is done; None if there is none.
    """
    resize = resize_records.handed_over_to(transaction, pod_id)
    if resize is None:
        return None
    if resize.agent_id != agent_id:
        return finish_without_agent(transaction, resize)
    done = replace(resize, phase=ResizePhase.DONE, gap_seconds=gap_seconds)
    resize_records.save(transaction, done)
    gap = "for an unknown time" if gap_seconds is None else f"for {gap_seconds:.2f} s"
    message = (
        f"{agent_id} continues in {pod_id} with {_cores(transaction, pod_id):g} cores instead of"
        f" {resize.predecessor_id}; nothing was trained {gap}"
    )
    _record_event(transaction, "pod_resized", pod_id, resize.tournament_id, message, agent_id)
    return done


def finish_without_agent(transaction: Transaction, resize: ResizeRecord) -> ResizeRecord:
    """Records that the new pod replaces the old one, whose agent has ended or is in another pod."""
    done = replace(resize, phase=ResizePhase.DONE)
    resize_records.save(transaction, done)
    message = (
        f"{resize.pod_id} with {_cores(transaction, resize.pod_id):g} cores replaces {resize.predecessor_id};"
        f" {resize.agent_id or 'the agent'} ended before, or another pod has it"
    )
    _record_event(transaction, "pod_resized", resize.pod_id, resize.tournament_id, message)
    return done


def abandon(transaction: Transaction, resize: ResizeRecord, reason: str) -> None:
    """Records why a resize does not take place."""
    resize_records.save(transaction, replace(resize, phase=ResizePhase.ABANDONED))
    message = f"{resize.pod_id} does not replace {resize.predecessor_id}: {reason}"
    _record_event(transaction, "pod_resize_abandoned", resize.pod_id, resize.tournament_id, message)


def abandon_failed(transaction: Transaction, tournament_id: str) -> list[ResizeRecord]:
    """Abandons resizes whose new pod is gone or not ready in time; a late pod is asked to stop.

    Returns:
        The resizes of the tournament as they are now, oldest first.
    """
    for resize in resize_records.under_way(transaction, tournament_id):
        pod = records.find(transaction, PodRecord, resize.pod_id)
        waited = transaction.now - resize.begin_time
        if pod is None or pod.phase == PodPhase.GONE:
            abandon(transaction, resize, "the new pod has stopped")
        elif resize.phase == ResizePhase.WARMING and waited >= WARMING_SECONDS:
            reason = f"it was not ready after {waited:.0f} s"
            abandon(transaction, resize, reason)
            pod_lifecycle.retire(transaction, resize.pod_id, reason)
    return resize_records.of_tournament(transaction, tournament_id)


def _cores(transaction: Transaction, pod_id: str) -> float:
    pod = records.find(transaction, PodRecord, pod_id)
    return pod.cores if pod else 0.0


def _record_event(
    transaction: Transaction, kind: str, pod_id: str, tournament_id: str, message: str, agent_id: str = ""
) -> None:
    transaction.record_event(kind, message, tournament_id=tournament_id, pod_id=pod_id, agent_id=agent_id)
