"""What every pod is told, whatever starts it: keys of its configuration, and which roles it is made of. Pure."""

from collections.abc import Mapping
from typing import Any

from orchestrator.launchers.base import NewPod, PodEnvironment
from podrace.errors import InvalidArgument
from podrace.tournament.v1 import tournament_pb2
from podrace.tournament.v1.tournament_pb2 import PodSpec

LEADER = "learner"
LAYOUT_NAMES = {tournament_pb2.LAYOUT_SEPARATE: "separate", tournament_pb2.LAYOUT_FUSED: "fused"}
LAYOUTS = {name: layout for layout, name in LAYOUT_NAMES.items()}


def pod_settings(pod: NewPod, pod_environment: PodEnvironment) -> dict[str, Any]:
    """Keys of the pod's configuration that depend on nothing but its specification and its surroundings."""
    return {
        "pod_id": pod.pod_id,
        "tournament_id": pod.tournament_id,
        "layout": LAYOUT_NAMES[pod.spec.layout],
        "workers": pod.spec.workers,
        # Tournaments that were stored before there was a choice do not say.
        "learners": pod.spec.learners or 1,
        "hosts": hosts_of(pod.spec),
        "precision": pod.spec.precision or "float32",
        "plane": pod.spec.plane or "auto",
        "cores": pod.spec.cores,
        "memory_bytes": pod.spec.memory_bytes,
        "threads": threads_of_a_role(pod.spec),
        "orchestrator": pod_environment.orchestrator,
        "leaderboard": pod_environment.leaderboard,
        "store": pod_environment.store,
        "orphan_seconds": pod_environment.orphan_seconds,
        "telemetry": {
            "log_format": pod_environment.telemetry.log_format,
            "log_level": pod_environment.telemetry.log_level,
        },
    }


def threads_of_a_role(spec: PodSpec) -> int:
    """Threads of torch in each role; the evaluator computes now and then only, and is niced."""
    computing = 1 if spec.layout == tournament_pb2.LAYOUT_FUSED else (spec.learners or 1) * (1 + spec.workers)
    return max(1, int(spec.cores / computing))


def hosts_of(spec: PodSpec) -> int:
    """Hosts of a pod; a specification that was stored before there was a choice does not say."""
    return spec.hosts or 1


def check_one_host(spec: PodSpec, launcher: str) -> None:
    """Refuses a pod of several hosts where there is only one.

    Raises:
        InvalidArgument: It has more than one.
    """
    if hosts_of(spec) > 1:
        raise InvalidArgument(
            f"pod.hosts = {spec.hosts}: the launcher {launcher!r} has one host; run the mesh on Kubernetes, or set it"
            " to 1"
        )


def roles_of(spec: PodSpec) -> tuple[str, ...]:
    """Names of a pod's processes on each of its hosts, the head first, as agentpod knows them."""
    if spec.layout == tournament_pb2.LAYOUT_FUSED:
        return (LEADER,)
    learners = (spec.learners or 1) // hosts_of(spec)
    others = tuple(f"{LEADER}-{index}" for index in range(1, learners))
    workers = tuple(f"worker-{index}" for index in range(spec.workers * learners))
    return (LEADER, *others, *workers, "evaluator")


def environment(settings: Mapping[str, Any], prefix: str = "PODRACE_AGENTPOD__") -> dict[str, str]:
    """Settings as environment variables that `podrace.config` reads; nested keys are joined by two underscores."""
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
