"""Records the lifecycle of pods: intended, seen, asked to stop, gone."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.decisions.pod_sizes.resized_pods import resized
from orchestrator.decisions.pool_size import KillPod, StartPod, Stop
from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod, NewPod
from orchestrator.pool import pod_deaths
from orchestrator.pool.pod_deaths import Death
from orchestrator.rebuilding.revival import revived
from orchestrator.state import pauses, records
from orchestrator.state.database import Transaction
from orchestrator.state.records import (
    EXTERNAL_POD_NUMBER,
    AgentRecord,
    EvaluationRecord,
    PodPhase,
    PodRecord,
    TournamentRecord,
    WorkRecord,
)
from podrace.limits.user_code import names_user_code
from podrace.tournament.v1.tournament_pb2 import PodSpec

START_GRACE_SECONDS = 10.0
"""A pod whose start a previous run of the orchestrator recorded appears within this time, or never."""
LEFT = "it no longer requests work"
UNKNOWN = "the database does not know its tournament"
RETURNED = "it counted as gone"
NUMBER = re.compile(r".+-p(\d{1,9})")


@dataclass(frozen=True)
class PodComparison:
    """Differences between the recorded pods and the launcher's list."""

    unknown: list[ListedPod]
    """Pods that run, but are not recorded."""
    appeared: list[PodRecord]
    """Pods whose start was recorded and that run now."""
    gone: list[PodRecord]
    """Pods that have stopped, or were never started."""
    removed: list[PodRecord]
    """Pods that their platform removes, which was not recorded before."""


def compare(
    recorded: Sequence[PodRecord],
    listed: Sequence[ListedPod],
    starting: Collection[str],
    absent_seconds: Mapping[str, float],
    unmanaged: Collection[str] = (),
) -> PodComparison:
    """Compares the recorded pods with the running ones.

    Args:
        recorded: Pods that are not known to be gone.
        listed: Pods that the launcher lists.
        starting: Pods that the launcher is starting now.
        absent_seconds: How long each recorded pod has been missing from the list.
        unmanaged: Pods that are not recorded on purpose.
    """
    running = {pod.pod_id for pod in listed}
    known = {pod.pod_id for pod in recorded}
    missing, unknown = known - running - set(starting), running - known - set(unmanaged)
    removed = {pod.pod_id for pod in listed if pod.removed}
    return PodComparison(
        unknown=[pod for pod in listed if pod.pod_id in unknown] if unknown else [],
        appeared=[pod for pod in recorded if pod.phase == PodPhase.INTENDED and pod.pod_id in running],
        gone=[
            pod
            for pod in recorded
            if pod.pod_id in missing
            and (pod.phase == PodPhase.SEEN or absent_seconds.get(pod.pod_id, 0.0) >= START_GRACE_SECONDS)
        ]
        if missing
        else [],
        removed=[pod for pod in recorded if pod.pod_id in removed and not pod.useful] if removed else [],
    )


# --- transactions ------------------------------------------------------------------------------------------------


def record_intent(transaction: Transaction, tournament_id: str, reason: str, pod_spec: PodSpec | None = None) -> NewPod:
    """Records a pod before it is started, so that no pod runs without a record.

    Args:
        transaction: The transaction to write in.
        tournament_id: Its tournament.
        reason: Why it is started.
        pod_spec: Its specification; None: that of the tournament.
    """
    tournament = records.find_tournament(transaction, tournament_id)
    number, spec = tournament.next_pod, pod_spec or tournament.spec.pod
    pod = PodRecord(
        pod_id=f"{tournament_id}-p{number}",
        tournament_id=tournament_id,
        number=number,
        phase=PodPhase.INTENDED,
        start_time=transaction.now,
        layout=spec.layout,
        cores=spec.cores,
        memory_bytes=spec.memory_bytes,
        gpus=spec.gpus,
        useful=False,
        drain_reason="",
    )
    records.save(transaction, pod)
    records.save(transaction, replace(tournament, next_pod=number + 1))
    transaction.record_event("pod_started", f"{pod.pod_id}: {reason}", tournament_id=tournament_id, pod_id=pod.pod_id)
    return NewPod(pod.pod_id, tournament_id, spec, user_code=names_user_code(tournament.spec))


def record_start(transaction: Transaction, action: StartPod) -> NewPod:
    """Records a pod that the pool starts, before it is started."""
    spec = records.find_tournament(transaction, action.tournament_id).spec
    size = None if action.cores is None else resized(spec, action.cores)
    return record_intent(transaction, action.tournament_id, action.reason, size)


def record_appearance(transaction: Transaction, found: PodComparison) -> frozenset[str]:
    """Records pods that were listed for the first time, and those that their platform removes.

    Unknown pods of a known tournament are adopted.

    Returns:
        The pods of tournaments that the database does not know. They are not managed: the database may be a new one
        whose backup will be restored.
    """
    unmanaged = set()
    for pod in found.appeared:
        # Read again: it may have been asked to stop since it was compared.
        current = records.find(transaction, PodRecord, pod.pod_id) or pod
        records.save(transaction, replace(current, phase=PodPhase.SEEN))
    for pod in found.removed:
        _exempt_from_failed_starts(transaction, pod.pod_id)
    for listed in found.unknown:
        known = records.find(transaction, PodRecord, listed.pod_id)
        tournament = records.find(transaction, TournamentRecord, listed.tournament_id)
        if tournament is None:
            unmanaged.add(listed.pod_id)
            message = f"{listed.pod_id} is running and is not managed: {UNKNOWN}; restore its backup, or stop the pod"
            transaction.record_event("pod_unknown", message, tournament_id=listed.tournament_id, pod_id=listed.pod_id)
        elif known is None:
            adopt_pod(transaction, listed.pod_id, tournament, listed=listed)
        else:
            # It was killed or its processes were not listed for a while, and its work may be assigned again.
            drained = replace(known, phase=PodPhase.SEEN, drain_reason=known.drain_reason or RETURNED)
            records.save(transaction, drained)
            message = f"{listed.pod_id} is asked to stop: {drained.drain_reason}"
            transaction.record_event("pod_draining", message, tournament_id=listed.tournament_id, pod_id=listed.pod_id)
    return frozenset(unmanaged)


def adopt_pod(
    transaction: Transaction,
    pod_id: str,
    tournament: TournamentRecord,
    *,
    listed: ListedPod | None = None,
    external: bool = False,
) -> None:
    """Records a running pod of a known tournament that the database does not know.

    Args:
        transaction: The transaction to write in.
        pod_id: The pod.
        tournament: Its tournament.
        listed: What the launcher lists, because the pod may have grown; None: it has the size of the specification.
        external: Whether it was not started by a launcher.
    """
    tournament = revived(transaction, tournament, pod_id)
    match, spec = NUMBER.fullmatch(pod_id), tournament.spec.pod
    number = EXTERNAL_POD_NUMBER if external or match is None else int(match[1])
    size = listed.reserved if listed else Resources(spec.cores, spec.memory_bytes, spec.gpus)
    adopted = PodRecord(
        pod_id=pod_id,
        tournament_id=tournament.tournament_id,
        number=number,
        phase=PodPhase.SEEN,
        start_time=transaction.now,
        layout=listed.layout if listed else spec.layout,
        cores=size.cores,
        memory_bytes=size.memory_bytes,
        gpus=size.gpus,
        useful=True,
        drain_reason="",
    )
    records.save(transaction, adopted)
    records.save(transaction, replace(tournament, next_pod=max(tournament.next_pod, number + 1)))
    message = f"{pod_id} is running and is adopted: the database did not know it"
    transaction.record_event("pod_adopted", message, tournament_id=tournament.tournament_id, pod_id=pod_id)


def record_pool_event(transaction: Transaction, kind: str, name: str, message: str) -> None:
    """Records an event about a pod or a tournament."""
    pod = records.find(transaction, PodRecord, name)
    transaction.record_event(
        kind, message, tournament_id=pod.tournament_id if pod else name, pod_id=name if pod else ""
    )


def retire(transaction: Transaction, pod_id: str, reason: str) -> None:
    """Asks a pod to publish and stop; it is notified when it next requests work or reports."""
    pod = records.find(transaction, PodRecord, pod_id)
    if pod is None or pod.drain_reason:
        return
    tournament = records.find(transaction, TournamentRecord, pod.tournament_id)
    # The reason why the tournament has ended or is paused is more useful than "it has no work".
    reason = (pauses.why_not_trained(transaction, tournament) if tournament else "") or reason
    records.save(transaction, replace(pod, drain_reason=reason))
    message = f"{pod_id} is asked to stop: {reason}"
    transaction.record_event("pod_draining", message, tournament_id=pod.tournament_id, pod_id=pod_id)


def record_stop(transaction: Transaction, action: Stop) -> None:
    """Records that a pod is terminated or killed; one that has called is then not one that could not start."""
    kill = isinstance(action, KillPod)
    kind, word = ("pod_killed", "killed") if kill else ("pod_terminated", "terminated")
    record_pool_event(transaction, kind, action.pod_id, f"{action.pod_id} is {word}: {action.reason}")
    if isinstance(action, KillPod) and not action.never_called:
        _exempt_from_failed_starts(transaction, action.pod_id)


def _exempt_from_failed_starts(transaction: Transaction, pod_id: str) -> None:
    """Records that the death of a pod will not be that of one that could not start."""
    if pod := records.find(transaction, PodRecord, pod_id):
        records.save(transaction, replace(pod, useful=True))


def mark_gone(transaction: Transaction, pod_id: str, last_log_line: str) -> Death:
    """Records that a pod is gone, and counts it unless it was asked to stop; see `pod_deaths.count`."""
    pod = records.find(transaction, PodRecord, pod_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return Death("")
    if pod.is_external:
        pod = _depart(transaction, pod)
    records.save(transaction, replace(pod, phase=PodPhase.GONE))
    as_requested = bool(pod.drain_reason)
    detail = f"; its last log line: {last_log_line}" if last_log_line and not as_requested else ""
    transaction.record_event(
        "pod_gone" if as_requested else "pod_died",
        f"{pod_id} has stopped: {pod.drain_reason}" if as_requested else f"{pod_id} died{detail}",
        tournament_id=pod.tournament_id,
        pod_id=pod_id,
    )
    return Death(pod.tournament_id) if as_requested else pod_deaths.count(transaction, pod, last_log_line)


def mark_not_started(transaction: Transaction, pod_id: str, reason: str) -> str:
    """Records that a pod was not started, for a reason that may pass; returns the id of its tournament."""
    pod = records.find(transaction, PodRecord, pod_id)
    if pod is None or pod.phase == PodPhase.GONE:
        return ""
    records.save(transaction, replace(pod, phase=PodPhase.GONE))
    transaction.record_event(
        "pod_not_started", f"{pod_id} was not started: {reason}", tournament_id=pod.tournament_id, pod_id=pod_id
    )
    return pod.tournament_id


def _depart(transaction: Transaction, pod: PodRecord) -> PodRecord:
    """Frees the work of an external pod, which may return under its id; one without work counts as asked to stop."""
    held = held_by(transaction, pod)
    for work in held:
        records.save(transaction, replace(work, pod_id="", incarnation=""))
    return pod if held or pod.drain_reason else replace(pod, drain_reason=LEFT)


def held_by(transaction: Transaction, pod: PodRecord) -> list[WorkRecord]:
    """Work that is assigned to a pod."""
    works: list[WorkRecord] = [
        *records.unfinished(transaction, EvaluationRecord, pod.tournament_id),
        *records.unfinished(transaction, AgentRecord, pod.tournament_id),
    ]
    return [work for work in works if work.pod_id == pod.pod_id]
