"""Builds the configuration of pods that is the same for all launchers, and lists the roles of a pod. Pure functions."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.images import image_problem, runs_images
from orchestrator.launchers.options import LauncherOptions
from podrace.errors import FieldViolation, InvalidArgument
from podrace.limits.config import changed_settings
from podrace.specification.plugin_settings import is_service
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec

LEADER = "learner"
"""Role of the leader, the first learner of a pod; the pod is alive as long as the leader is."""
FIRST_WORKER = "worker-0"
"""Role of the first worker. In a fused pod that is isolated, its process is the evaluator as well."""
ALL_ROLES = "pod"
"""Command of a container that runs all roles of a pod on its host as its processes."""
LAYOUT_NAMES = {tournament_pb2.LAYOUT_SEPARATE: "separate", tournament_pb2.LAYOUT_FUSED: "fused"}
LAYOUTS = {name: layout for layout, name in LAYOUT_NAMES.items()}


def _worker_settings(worker: str) -> dict[str, str]:
    if is_service(worker):
        return {"worker_address": worker.removeprefix("grpc://")}
    return {"worker_class": worker} if worker else {}


def pod_settings(pod: NewPod, pod_environment: PodEnvironment) -> dict[str, Any]:
    """Configuration keys of a pod that depend only on its specification and the shared settings.

    They are the same for all its roles. `leader_settings` has those that only the leader may know.
    """
    return {
        "pod_id": pod.pod_id,
        "tournament_id": pod.tournament_id,
        "layout": LAYOUT_NAMES[pod.spec.layout],
        "workers": pod.spec.workers,
        # Not set in tournaments that were created before pods could have several learners.
        "learners": pod.spec.learners or 1,
        "hosts": hosts_of(pod.spec),
        "precision": pod.spec.precision or "float32",
        "plane": pod.spec.plane or "auto",
        **_worker_settings(pod.spec.worker),
        "captured": pod.spec.captured or not pod.spec.HasField("captured"),
        "cores": pod.spec.cores,
        "memory_bytes": pod.spec.memory_bytes,
        "pod_gpus": pod.spec.gpus // hosts_of(pod.spec),
        "threads": threads_of_a_role(pod.spec),
        "orchestrator": pod_environment.orchestrator,
        "leaderboard": pod_environment.leaderboard,
        "store": pod_environment.store,
        "store_access": pod_environment.store_access,
        "orphan_seconds": pod_environment.orphan_seconds,
        "progress": dataclasses.asdict(pod_environment.progress),
        "telemetry": {
            "log_format": pod_environment.telemetry.log_format,
            "log_level": pod_environment.telemetry.log_level,
            "traces": pod_environment.telemetry.traces,
        },
        **({"insecure": True} if pod_environment.insecure else {}),
        **({"isolated": True} if is_isolated(pod, pod_environment) else {}),
        "allow": changed_settings(pod_environment.allow),
    }


def leader_settings(
    pod: NewPod, pod_environment: PodEnvironment, lifetime_seconds: float | None = None
) -> dict[str, Any]:
    """Configuration keys of the leader: the token that identifies the pod, if the mesh has a key.

    Args:
        pod: The pod.
        pod_environment: Settings that all pods share.
        lifetime_seconds: Time in which the pod must start and make its first call; None: that of other tokens.
    """
    token = pod_environment.pod_tokens.first(pod.pod_id, pod.tournament_id, lifetime_seconds)
    return {"token": token} if token else {}


def host_settings(pod: NewPod) -> dict[str, Any]:
    """Configuration keys that all hosts of a pod must have in common: the key by which they identify each other."""
    return {"key": secrets.token_urlsafe(32)} if hosts_of(pod.spec) > 1 else {}


def threads_of_a_role(spec: PodSpec) -> int:
    """Number of torch threads of each role; the evaluator is not counted, because it computes rarely and is niced."""
    processes = 1 if spec.layout == tournament_pb2.LAYOUT_FUSED else 1 + spec.workers
    computing = (spec.learners or 1) * processes
    return max(1, int(spec.cores / computing))


def hosts_of(spec: PodSpec) -> int:
    """Number of hosts of a pod; not set in specifications that were stored before pods could have several hosts."""
    return spec.hosts or 1


def check_one_host(spec: PodSpec, launcher: str) -> None:
    """Rejects a pod with several hosts for a launcher that has only one.

    Raises:
        InvalidArgument: The pod has several hosts.
    """
    if hosts_of(spec) > 1:
        raise InvalidArgument(
            f"pod.hosts = {spec.hosts}: the launcher {launcher!r} has one host; set it to 1, or run the mesh on"
            " Kubernetes"
        )


def check_own_worker(spec: PodSpec, launcher: str) -> None:
    """Rejects a worker of a third party if it cannot reach the sockets of the launcher's pods.

    Raises:
        InvalidArgument: The pod has such a worker.
    """
    if is_service(spec.worker):
        raise InvalidArgument(f"pod.worker = {spec.worker!r}: {unreached(launcher)}")


def unreached(launcher: str) -> str:
    """Returns why a launcher has no worker of a third party."""
    return (
        f"it cannot reach the sockets of a pod of the launcher {launcher!r}; leave it out, or use the launcher"
        " 'process'"
    )


def check_image(spec: PodSpec, launcher: str, allowed: Sequence[str] = (), configured: str = "") -> None:
    """Rejects an image that the operator does not allow; the configuration may have changed since the tournament began.

    Raises:
        InvalidArgument: The specification names such an image.
    """
    if problem := image_problem(spec.image, launcher, allowed, configured):
        raise InvalidArgument(f"pod.image = {spec.image!r}: {problem}")


def unstartable(spec: PodSpec, launcher: str, options: LauncherOptions) -> list[FieldViolation]:
    """Returns what a launcher cannot start, whatever its machines have.

    Args:
        spec: The pods of a specification.
        launcher: Name of the launcher.
        options: Of all launchers.
    """
    allowed = {"docker": options.docker.images, "kubernetes": options.kubernetes.images}.get(launcher, ())
    configured = options.docker.image if launcher == "docker" else ""
    problem = image_problem(spec.image, launcher, allowed, configured)
    found = [FieldViolation("pod.image", f"= {spec.image!r}: {problem}")] if problem else []
    if is_service(spec.worker) and runs_images(launcher):
        found.append(FieldViolation("pod.worker", f"= {spec.worker!r}: {unreached(launcher)}"))
    return found


def is_isolated(pod: NewPod, pod_environment: PodEnvironment) -> bool:
    """Whether workers and evaluator share neither a process nor a user id with the leader: they import user code."""
    return pod.user_code and not pod_environment.allow.everything


def roles_of(spec: PodSpec, *, isolated: bool = False) -> tuple[str, ...]:
    """Names of a pod's processes on each of its hosts, the leader first."""
    count = (spec.learners or 1) // hosts_of(spec)
    learners = (LEADER, *(f"{LEADER}-{index}" for index in range(1, count)))
    workers = () if is_service(spec.worker) else tuple(f"worker-{index}" for index in range(spec.workers * count))
    if spec.layout == tournament_pb2.LAYOUT_FUSED:
        return (*learners, *workers) if isolated else learners
    return (*learners, *workers, "evaluator")


def containers_of(spec: PodSpec, *, isolated: bool, together: bool = False) -> Mapping[str, str]:
    """Decides which containers a pod has on each of its hosts.

    The learners of a fused pod are processes of one container, so that they see all GPUs of the pod and each other's
    memory. User code is always in other containers than the leader, which has the token.

    Args:
        spec: Specification of the pod.
        isolated: Whether workers and evaluator run user code.
        together: Whether the roles of every pod are processes of one container.

    Returns:
        The command of each container by the name of its role, the leader first.
    """
    roles = roles_of(spec, isolated=isolated)
    in_one = len(roles) > 1 and not isolated and (together or spec.layout == tournament_pb2.LAYOUT_FUSED)
    return {LEADER: ALL_ROLES} if in_one else {role: role for role in roles}


def environment(settings: Mapping[str, Any], prefix: str = "PODRACE_AGENTPOD__") -> dict[str, str]:
    """Converts settings to environment variables for `podrace.config`; nested keys are joined by two underscores."""
    variables: dict[str, str] = {}
    for key, value in settings.items():
        name = f"{prefix}{key.upper()}"
        if isinstance(value, Mapping):
            variables |= environment(value, f"{name}__")
        elif isinstance(value, tuple | list):
            variables[name] = ",".join(map(str, value))
        else:
            variables[name] = str(value)
    return variables
