"""Builds the Job of a pod from the PodTemplate, and reads back which pod a Job runs. Pure functions.

The template has everything that does not depend on the pod: image, security, volumes, nodes, credentials. This module
adds the pod's roles, their resources and configuration, and the memory they share.
"""

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.decisions.resources import Resources
from orchestrator.launchers.base import ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.gpu_names import NO_GPUS
from orchestrator.launchers.kubernetes.api_client import Object
from orchestrator.launchers.kubernetes.hosts import (
    LEADER_PORT,
    anti_affinity,
    completions,
    host_environment,
    share_of_host,
)
from orchestrator.launchers.kubernetes.pod_secrets import secret_environment
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.launchers.pod_settings import (
    LAYOUT_NAMES,
    LAYOUTS,
    LEADER,
    containers_of,
    environment,
    hosts_of,
    is_isolated,
    pod_settings,
    roles_of,
)
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.limits.user_environment import STORE_PREFIXES
from podrace.tournament.v1.tournament_pb2 import PodSpec

CONTAINER = "agentpod"
"""Container of the template from which the container of every role is built."""
LONGEST_NAME = 57
"""Length of a Job name. The names of its pods are six characters longer, and must not exceed the length of a label."""
LABEL_VALUE = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
EVALUATOR = "evaluator"
EVALUATOR_PART = 10
"""The evaluator, which computes rarely, gets one in this many parts of the pod's cores."""
ROLE_WAIT_SECONDS = 60.0
"""Time that roles wait for each other: the containers of a pod start one after the other."""
SOCKETS_BYTES = 16 << 20
METRICS_PORT = 9090
FOLDER = "/run/podrace"
SHARED_MEMORY = "/dev/shm"


def job_name(pod_id: str) -> str:
    """Name of a pod's Job: the pod id, or its allowed characters and a digest if it is no valid name."""
    return _name(pod_id, LONGEST_NAME)


def owner_name(scope: str, tournament_id: str) -> str:
    """Name of the ConfigMap to which the Jobs of a tournament belong."""
    return _name(f"{scope}-{tournament_id}", LONGEST_NAME)


def label_value(identity: str) -> str:
    """Returns an id as the value of a label: unchanged if it is a valid one, otherwise with a digest."""
    return identity if LABEL_VALUE.fullmatch(identity) else _name(identity, LONGEST_NAME)


def _name(wanted: str, longest: int) -> str:
    allowed = re.sub(r"[^a-z0-9-]+", "-", wanted.lower()).strip("-")
    if allowed == wanted and len(wanted) <= longest:
        return wanted
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return f"{allowed[: longest - 9].strip('-')}-{digest}"


def job_of(
    pod: NewPod, pod_environment: PodEnvironment, options: KubernetesOptions, template: Object, owner: Object
) -> dict[str, Any]:
    """Builds the Job of a pod.

    Args:
        pod: The pod to start.
        pod_environment: Settings that all pods share.
        options: Options of the launcher.
        template: The PodTemplate. Its own labels and annotations are copied to the Job, those of its template to the
            Kubernetes pods.
        owner: ConfigMap of the tournament.

    Raises:
        FailedPrecondition: The template has no container to build the roles from.
        InvalidArgument: The pod's GPUs cannot be distributed over its containers, or its hosts would be connected over
            a network that the operator has not declared to be protected.
    """
    name, owned = job_name(pod.pod_id), owner["metadata"]
    labels = {
        "app.kubernetes.io/part-of": "podrace",
        "app.kubernetes.io/component": "agentpod",
        "podrace/scope": options.scope,
        "podrace/tournament": owned["name"],
        "podrace/pod": name,
        # For Prometheus.
        "podrace/tournament-id": label_value(pod.tournament_id),
        "podrace/pod-id": label_value(pod.pod_id),
    }
    template_metadata = template["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**(template_metadata.get("labels") or {}), **labels},
            "annotations": {**_without_kubectl(template_metadata.get("annotations")), **_annotations(pod)},
            # Not owned by the orchestrator's pod: its pods would be deleted when it is replaced.
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": owned["name"], "uid": owned["uid"]}],
        },
        "spec": _job_spec(pod, pod_environment, options, template, labels),
    }


def _job_spec(
    pod: NewPod,
    pod_environment: PodEnvironment,
    options: KubernetesOptions,
    template: Object,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    pod_metadata = template["template"].get("metadata") or {}
    return {
        **completions(pod.spec),
        # A pod that dies is replaced by a new one with another id. A pod that Kubernetes evicted is not dead: it is
        # recreated as soon as it has stopped.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": round(2 * options.keep_seconds) + 60,
        "template": {
            "metadata": {
                **pod_metadata,
                "labels": {**(pod_metadata.get("labels") or {}), **labels},
            },
            "spec": _pod_spec(pod, pod_environment, options, template),
        },
    }


def _pod_spec(
    pod: NewPod, pod_environment: PodEnvironment, options: KubernetesOptions, template: Object
) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(dict(template["template"]["spec"]))
    containers = spec.pop("containers", None) or []
    base = next((container for container in containers if container.get("name") == CONTAINER), None)
    if base is None:
        raise FailedPrecondition(f"PodTemplate {options.template!r} has no container {CONTAINER!r}: apply deploy/k8s")
    share, name, isolated = share_of_host(pod.spec), job_name(pod.pod_id), is_isolated(pod, pod_environment)
    commands = containers_of(pod.spec, isolated=isolated, together=options.one_container)
    roles = tuple(commands)
    gpus = gpus_of_roles(share, roles, claimed=not options.gpu_resource)
    resources = resources_of_roles(share, roles)
    hosts = host_environment(name, pod.spec, template, unprotected_collectives=options.unprotected_collectives)
    role_containers = [
        _container(
            base,
            role,
            image=pod.spec.image,
            command=commands[role],
            environment=[*_environment(pod, pod_environment, role, gpus[role]), *hosts],
            ports=_ports(index, leader=bool(hosts) and role == LEADER),
            resources=_resources(base, resources[role], gpus[role], options.gpu_resource),
        )
        for index, role in enumerate(roles)
    ]
    others = [container for container in containers if container is not base]
    spec |= {"containers": [*role_containers, *others], "restartPolicy": "Never"}
    spec["volumes"] = [*(spec.get("volumes") or []), *_volumes(share)]
    if hosts:
        spec["affinity"] = anti_affinity(name, pod.spec, spec.get("affinity"))
    if len(roles) > 1:
        # CUDA opens memory handles by process id, so roles need a common process namespace. User code must not see
        # processes of other containers.
        spec["shareProcessNamespace"] = not isolated
        # Newer clusters apply this limit to all containers together; older ones ignore it.
        spec["resources"] = pod_resources(share)
    return spec


def _container(
    base: Object,
    role: str,
    *,
    image: str,
    command: str,
    environment: Sequence[Mapping[str, Any]],
    ports: Sequence[Mapping[str, Any]],
    resources: Mapping[str, Any],
) -> dict[str, Any]:
    """The container of a role, built from that of the template."""
    container: dict[str, Any] = copy.deepcopy(dict(base))
    container["name"] = role
    container["args"] = [command]
    if image:
        container["image"] = image
    # Workers and evaluators run simulators of users; the leader alone has access to the store.
    given = [each for each in base.get("env") or [] if role == LEADER or not each["name"].startswith(STORE_PREFIXES)]
    container["env"] = [*given, *environment]
    container["ports"] = list(ports)
    container["resources"] = resources
    container["volumeMounts"] = [
        *(base.get("volumeMounts") or []),
        {"name": "sockets", "mountPath": FOLDER},
        {"name": "shared-memory", "mountPath": SHARED_MEMORY},
    ]
    return container


def _ports(index: int, *, leader: bool) -> list[dict[str, Any]]:
    """Ports of the role with this index; the leader of several hosts also serves the other hosts."""
    ports: list[dict[str, Any]] = [{"name": "metrics", "containerPort": METRICS_PORT + index}]
    return [*ports, {"name": "head", "containerPort": LEADER_PORT}] if leader else ports


def _volumes(spec: PodSpec) -> list[dict[str, Any]]:
    # Shared pages count towards the memory limit of the container that writes them first.
    shared = {"medium": "Memory"} | ({"sizeLimit": str(spec.memory_bytes)} if spec.memory_bytes else {})
    return [
        {"name": "sockets", "emptyDir": {"medium": "Memory", "sizeLimit": str(SOCKETS_BYTES)}},
        {"name": "shared-memory", "emptyDir": shared},
    ]


def _environment(pod: NewPod, pod_environment: PodEnvironment, role: str, gpus: int) -> list[dict[str, Any]]:
    settings = pod_settings(pod, pod_environment) | {
        "folder": f"{FOLDER}/pod",
        "plane_folder": SHARED_MEMORY,
        "role_wait_seconds": ROLE_WAIT_SECONDS,
        # A container sees only its own GPUs, numbered from 0.
        "gpus": tuple(range(gpus)),
    }
    roles = roles_of(pod.spec, isolated=is_isolated(pod, pod_environment))
    # The roles of a pod share one network: each serves metrics on its own port, the leader on the first.
    settings["telemetry"]["metrics_listen"] = f"0.0.0.0:{METRICS_PORT + roles.index(role)}"
    plain = [
        {"name": name, "value": value}
        for name, value in (environment(settings) | ({} if gpus else dict(NO_GPUS))).items()
    ]
    return [*plain, *secret_environment(pod, pod_environment, job_name(pod.pod_id), role)]


def gpus_of_roles(spec: PodSpec, roles: Sequence[str], *, claimed: bool = False) -> Mapping[str, int]:
    """Distributes GPUs over containers: a GPU belongs to the one container that requests it.

    Learners come first, then workers, then the evaluator. With the plane `group` every role needs one, because NCCL
    connects only GPUs.

    Args:
        spec: Specification of the pod.
        roles: Its containers.
        claimed: Whether a resource claim of the pod provides the GPUs, so that every container sees all of them.

    Raises:
        InvalidArgument: There are too many or too few GPUs.
    """
    if claimed or len(roles) == 1:
        return dict.fromkeys(roles, spec.gpus)
    if spec.gpus > len(roles):
        raise InvalidArgument(
            f"pod.gpus = {spec.gpus}: a pod of {len(roles)} containers ({', '.join(roles)}) can use one GPU each"
        )
    if spec.gpus and spec.plane == "group" and spec.gpus < len(roles):
        raise InvalidArgument(
            f"pod.gpus = {spec.gpus}: plane 'group' needs one GPU for each of {', '.join(roles)},"
            " because a GPU belongs to one container"
        )
    ordered = sorted(roles, key=lambda role: (role == EVALUATOR, not role.startswith(LEADER)))
    return {role: int(ordered.index(role) < spec.gpus) for role in roles}


def resources_of_roles(spec: PodSpec, roles: Sequence[str]) -> Mapping[str, dict[str, dict[str, str]]]:
    """Requests and limits of each container: requests add up to the pod's reservation, each limit is all of it."""
    thousandths, memory = round(spec.cores * 1000), spec.memory_bytes
    cores = _parts(thousandths, roles, thousandths // EVALUATOR_PART)
    memories = _parts(memory, roles, memory // len(roles))
    limits = pod_resources(spec)["limits"]
    found = {}
    for role in roles:
        requests = {"cpu": f"{cores[role]}m"} | ({"memory": str(memories[role])} if memory else {})
        found[role] = {"requests": requests, "limits": dict(limits)}
    return found


def pod_resources(spec: PodSpec) -> dict[str, dict[str, str]]:
    """What a pod reserves, as requests and as limits."""
    all_of_it = {"cpu": f"{round(spec.cores * 1000)}m"}
    if spec.memory_bytes:
        all_of_it["memory"] = str(spec.memory_bytes)
    return {"requests": dict(all_of_it), "limits": all_of_it}


def _parts(total: int, roles: Sequence[str], evaluators: int) -> Mapping[str, int]:
    """Splits a total into whole parts that add up to it."""
    others = [role for role in roles if role != EVALUATOR]
    parts = {role: evaluators for role in roles if role == EVALUATOR and others}
    remaining = total - sum(parts.values())
    parts |= {role: remaining // len(others) for role in others}
    parts[others[0]] += total - sum(parts.values())
    return parts


def _resources(
    base: Object, role_resources: Mapping[str, dict[str, str]], gpus: int, gpu_resource: str
) -> dict[str, Any]:
    """Resources of a role over those of the template, whose devices (RDMA adapters) only containers with a GPU get."""
    template_resources = base.get("resources") or {}
    found: dict[str, Any] = {**template_resources}
    for side in ("requests", "limits"):
        stated = template_resources.get(side) or {}
        devices = {key: value for key, value in stated.items() if gpus or "/" not in key}
        found[side] = {**devices, **role_resources[side]}
        if gpus and gpu_resource:
            found[side][gpu_resource] = str(gpus)
    return found


def _annotations(pod: NewPod) -> dict[str, str]:
    spec = pod.spec
    return {
        "podrace/pod-id": pod.pod_id,
        "podrace/tournament-id": pod.tournament_id,
        "podrace/layout": LAYOUT_NAMES[spec.layout],
        "podrace/cores": str(spec.cores),
        "podrace/memory-bytes": str(spec.memory_bytes),
        "podrace/gpus": str(spec.gpus),
        "podrace/hosts": str(hosts_of(spec)),
    }


def _without_kubectl(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Annotations without those of kubectl."""
    return {key: value for key, value in (annotations or {}).items() if "kubectl.kubernetes.io" not in key}


def listed_of(job: Object, address: str = "") -> ListedPod:
    """Returns the pod that a Job runs.

    Args:
        job: A Job of this launcher.
        address: Address of its pod with the leader; empty while it is not running.
    """
    annotations = job["metadata"]["annotations"]
    containers = job["spec"]["template"]["spec"]["containers"] if address else []
    ports = {
        each["name"]: port["containerPort"]
        for each in containers
        for port in each.get("ports") or []
        if port.get("name") == "metrics"
    }
    return ListedPod(
        pod_id=annotations["podrace/pod-id"],
        tournament_id=annotations["podrace/tournament-id"],
        start_time=seconds_of(job["metadata"]["creationTimestamp"]),
        layout=LAYOUTS[annotations["podrace/layout"]],
        reserved=Resources(
            float(annotations["podrace/cores"]),
            int(annotations["podrace/memory-bytes"]),
            int(annotations["podrace/gpus"]),
            # Not set by versions in which pods had one host.
            int(annotations.get("podrace/hosts", 1)),
        ),
        metrics={role: f"{address}:{port}" for role, port in ports.items()},
        started=bool(address),
    )


def seconds_of(timestamp: str) -> float:
    """Converts a Kubernetes timestamp to seconds since 1970."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def owner_of(scope: str, tournament_id: str) -> dict[str, Any]:
    """Builds the ConfigMap to which the Jobs and Kubernetes events of a tournament belong."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": owner_name(scope, tournament_id),
            "labels": {
                "app.kubernetes.io/part-of": "podrace",
                "app.kubernetes.io/component": "tournament",
                "podrace/scope": scope,
            },
        },
        "data": {"tournament_id": tournament_id},
    }
