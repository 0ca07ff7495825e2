"""Derives the state of agent pods from Jobs and Kubernetes pods: finished, waiting, exit status. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.launchers.kubernetes.api_client import Object
from orchestrator.launchers.kubernetes.hosts import leader_pods
from orchestrator.launchers.pod_settings import LEADER

IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
STUCK_REASONS = (*IMAGE_REASONS, "CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""Waiting reasons of a container that cannot start until someone corrects its image or configuration."""
STARTED_PHASES = ("Running", "Unknown")
"""Phases of pods whose processes run, as far as known; `Unknown`: the node does not answer."""
CURRENT_PHASES = (None, "Pending", *STARTED_PHASES)
LONGEST_REASON = 300


@dataclass(frozen=True)
class JobState:
    """State of one Job and its pods."""

    finished: bool
    """Whether it has completed or failed: the agent pod is dead."""
    failed: bool
    waiting: str
    """Why it does not run; empty if it runs or is about to."""
    leader_ended: bool
    """Whether the leader has exited, but the pod has not finished."""
    role_lost: str
    """Another container that has exited while the leader runs, and its exit status; empty if there is none."""
    terminating: bool
    """Whether the Job, or each of its pods, is being deleted. A pod that is being replaced does not count."""
    removed: bool
    """Whether a pod of the Job is or was removed by something else than its launcher, which deletes Jobs."""


def job_state(job: Object, pods: Sequence[Object]) -> JobState:
    """Derives the state of a Job and its pods."""
    conditions = _true_conditions(job)
    ended = {"Complete", "Failed"} & conditions.keys()
    current = [pod for pod in pods if pod.get("status", {}).get("phase") in CURRENT_PHASES]
    waiting = next((reason for reason in map(waiting_reason, current) if reason), "")
    if "Suspended" in conditions or job["spec"].get("suspend"):
        message = conditions.get("Suspended", {}).get("message", "")
        waiting = _shorten(f"its Job is suspended: {message or 'a queue has not admitted it'}")
    return JobState(
        finished=bool(ended),
        failed="Failed" in ended,
        waiting=waiting,
        leader_ended=any(_terminated_state(pod, LEADER) for pod in leader_pods(current)),
        role_lost=next((lost for lost in map(_role_lost, current) if lost), ""),
        terminating="deletionTimestamp" in job["metadata"]
        or (bool(current) and all("deletionTimestamp" in pod["metadata"] for pod in current)),
        removed="deletionTimestamp" not in job["metadata"] and any(map(_is_removed, pods)),
    )


def address_of(pods: Sequence[Object]) -> str:
    """Address of a Job's pod with the leader; empty while it is not running.

    A pod whose node is lost counts as running: it must call. One that is being deleted counts only if no other pod
    replaces it.
    """
    current = [pod for pod in leader_pods(pods) if pod.get("status", {}).get("phase") in CURRENT_PHASES]
    staying = [pod for pod in current if "deletionTimestamp" not in pod["metadata"]]
    started = [pod["status"] for pod in staying or current if pod.get("status", {}).get("phase") in STARTED_PHASES]
    return next((str(status["podIP"]) for status in started if status.get("podIP")), "")


def belongs_to(pod: Object, job: Object) -> bool:
    """Whether a pod was created for this Job, and not for another one that has had the same name."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def waiting_reason(pod: Object) -> str:
    """Why a pod has not started, as reported by Kubernetes; empty if nothing blocks it."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") in ("Unschedulable", "SchedulingGated"):
            return _shorten(f"no node accepts it: {condition.get('message') or condition['reason']}")
    for container in _container_statuses(status):
        state = (container.get("state") or {}).get("waiting") or {}
        reason, message = state.get("reason", ""), state.get("message", "")
        if reason in IMAGE_REASONS:
            return _shorten(
                f"image {container.get('image')!r} is not available ({reason}): {message}".removesuffix(": ")
            )
        if reason in STUCK_REASONS:
            return _shorten(f"container {container['name']} cannot start ({reason}): {message}".removesuffix(": "))
    return ""


def creation_failure(events: Iterable[Object]) -> str:
    """Why a Job has no pod, according to the latest of its events."""
    failures = [event for event in events if event.get("reason") == "FailedCreate"]
    if not failures:
        return ""
    latest = max(failures, key=lambda event: event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])
    return _shorten(f"its pod cannot be created: {latest.get('message', '')}")


def termination_reason(pods: Sequence[Object]) -> str:
    """How the leader of a dead Job ended, if it did not log anything."""
    for pod in sorted(leader_pods(pods), key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True):
        status = pod.get("status", {})
        if status.get("reason"):
            # Evicted, Preempting, NodeLost, ...: not caused by the leader.
            return _shorten(f"{status['reason']}: {status.get('message', '')}".removesuffix(": "))
        for container in status.get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated")
            if container["name"] == LEADER and ended:
                return _exit_text(ended)
    return ""


def _exit_text(ended: Object) -> str:
    return "killed: out of memory" if ended.get("reason") == "OOMKilled" else f"exit code {ended.get('exitCode')}"


def _terminated_state(pod: Object, name: str) -> Object | None:
    """Terminated state of a container; None if it has not exited."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    ended = ((each.get("state") or {}).get("terminated") for each in statuses if each["name"] == name)
    return next(ended, None)


def _role_lost(pod: Object) -> str:
    """A role that has exited while the leader runs; Kubernetes would leave the other containers running."""
    if _terminated_state(pod, LEADER):
        return ""
    for role in (container["name"] for container in pod["spec"].get("containers") or []):
        ended = _terminated_state(pod, role)
        if ended:
            return f"{role} exited: {_exit_text(ended)}"
    return ""


def _is_removed(pod: Object) -> bool:
    """Whether a pod is being deleted, or Kubernetes states that it was disrupted: evicted, preempted, its node lost."""
    return "deletionTimestamp" in pod["metadata"] or "DisruptionTarget" in _true_conditions(pod)


def _container_statuses(status: Object) -> Sequence[Object]:
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _true_conditions(found: Object) -> Mapping[str, Object]:
    """Conditions of a Job or a pod that hold, by type."""
    conditions = found.get("status", {}).get("conditions") or []
    return {condition["type"]: condition for condition in conditions if condition.get("status") == "True"}


def _shorten(reason: str) -> str:
    return " ".join(reason.split())[:LONGEST_REASON]
