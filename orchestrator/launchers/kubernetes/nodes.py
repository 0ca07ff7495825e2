"""Decides what a cluster has for agent pods: per node, because a pod has to fit on a single one; minus quotas. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.decisions.resources import Capacity, FreeResources, Resources
from orchestrator.launchers.kubernetes.api_client import Object

UNKNOWN_GPUS = 1 << 20
"""Where claims bring the GPUs, only the scheduler knows how many are left."""
SUFFIXES = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60, "n": 1e-9, "u": 1e-6,
}  # fmt: skip
NOTHING = Resources(0.0, 0, 0)
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ClusterObjects:
    """What of the cluster a decision depends on, all of about the same moment."""

    nodes: Sequence[Object]
    pods: Sequence[Object]
    """Of all namespaces, as far as this service may see them."""
    quotas: Sequence[Object]
    template: Object
    """PodTemplate of agent pods: which nodes they may be on."""


def quantity(text: str | float) -> float:
    """A quantity as Kubernetes writes it: 2, 500m, 1.5Gi, 1e3."""
    text = str(text)
    for length in (2, 1):
        if text[-length:] in SUFFIXES:
            return float(text[:-length]) * SUFFIXES[text[-length:]]
    return float(text)


def capacity_of(
    seen: ClusterObjects,
    ours: Callable[[Object], bool],
    coming: Iterable[Resources],
    gpu_resource: str,
    closed: str = "",
) -> Capacity:
    """What there is for agent pods.

    A node that takes no new pods counts with what ours have there: cordoned, it keeps what runs. A pod that no node has
    room for counts as well: it keeps its place in the pool, and whoever adds nodes to the cluster sees it wait.

    Args:
        seen: The cluster.
        ours: Whether a pod of the cluster is an agent pod of this launcher.
        coming: What pods of ours will reserve that no node has taken yet.
        gpu_resource: Name of what a container with a GPU asks for; empty: GPUs cannot be counted.
        closed: Why no pod may be started now, if so.
    """
    requested: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in seen.pods:
        node = pod["spec"].get("nodeName")
        if node and pod.get("status", {}).get("phase") not in ENDED:
            requested[node].append(pod)
    free, totals = [], []
    for node in seen.nodes:
        pods = requested[node["metadata"]["name"]]
        left = _left(node, pods, seen.template, gpu_resource)
        mine = _sum(requests_of(pod, gpu_resource) for pod in pods if ours(pod))
        if left == NOTHING and mine == NOTHING:
            continue
        free.append(left)
        totals.append(left + mine)
    held = _sum(requests_of(pod, gpu_resource) for pods in requested.values() for pod in pods if ours(pod))
    quota = quota_left(seen.quotas, gpu_resource)
    unoccupied = FreeResources(_least(_sum(free), quota), tuple(free), strict=True)
    for resources in coming:
        held += resources
        if unoccupied.has_nodes(resources):
            unoccupied -= resources
        else:
            totals += [resources.per_host] * resources.hosts
    return Capacity(
        total=_least(_sum(totals), held + quota),
        # Requests are what counts here; what pods have not touched yet is reserved all the same.
        available_memory_bytes=1 << 62,
        nodes=tuple(totals) or (NOTHING,),
        free=unoccupied,
        closed=closed,
    )


def takes_pods(node: Object, template: Object) -> bool:
    """Whether a node would take an agent pod: ready, not cordoned, of the labels asked for, without a taint in the way.

    Affinities are not looked at: a pod that waits for them stops the growth, and says so.
    """
    spec = template["template"]["spec"]
    conditions = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions") or []}
    if node["spec"].get("unschedulable") or conditions.get("Ready") != "True":
        return False
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    tolerations = spec.get("tolerations") or []
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    return all(any(_tolerates(each, taint) for each in tolerations) for taint in taints)


def requests_of(pod: Object, gpu_resource: str) -> Resources:
    """What a pod reserves: its containers together, or its largest init container, or what it says as a whole."""
    spec = pod["spec"]
    running = _sum(_requests(container, gpu_resource) for container in spec.get("containers") or [])
    reserved = running
    for container in spec.get("initContainers") or []:
        asked = _requests(container, gpu_resource)
        if container.get("restartPolicy") == "Always":
            # A sidecar runs on beside the others.
            reserved, running = reserved + asked, running + asked
        else:
            reserved = _most(reserved, asked)
    stated = (spec.get("resources") or {}).get("requests")
    if stated:
        reserved = _counted({"cpu": reserved.cores, "memory": reserved.memory_bytes, **stated}, "", reserved.gpus)
    return reserved + _counted(spec.get("overhead") or {}, "")


def quota_left(quotas: Iterable[Object], gpu_resource: str) -> Resources:
    """What quotas of the namespace leave, all of them together."""
    left = {"cpu": float("inf"), "memory": float(1 << 62), "gpus": float(UNKNOWN_GPUS)}
    meant = {"requests.cpu": "cpu", "cpu": "cpu", "limits.cpu": "cpu", "requests.memory": "memory", "memory": "memory"}
    meant |= {"limits.memory": "memory", f"requests.{gpu_resource}": "gpus"}
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            # Of some pods only, and whether ours are among them is for the server to say.
            continue
        status = quota.get("status", {})
        for name, hard in (status.get("hard") or {}).items():
            rest = quantity(hard) - quantity((status.get("used") or {}).get(name, "0"))
            if name in ("pods", "count/jobs.batch") and rest <= 0:
                left["cpu"] = 0.0
            elif name in meant:
                left[meant[name]] = min(left[meant[name]], max(rest, 0.0))
    return Resources(left["cpu"], int(left["memory"]), int(left["gpus"]))


def _left(node: Object, pods: Sequence[Object], template: Object, gpu_resource: str) -> Resources:
    """What is left on a node; nothing where no agent pod would be taken."""
    allocatable = node.get("status", {}).get("allocatable") or {}
    if not takes_pods(node, template) or len(pods) >= quantity(allocatable.get("pods", "110")):
        return NOTHING
    there = _counted(allocatable, gpu_resource, 0 if gpu_resource else UNKNOWN_GPUS)
    left = there - _sum(requests_of(pod, gpu_resource) for pod in pods)
    return Resources(max(left.cores, 0.0), max(left.memory_bytes, 0), max(left.gpus, 0))


def _requests(container: Object, gpu_resource: str) -> Resources:
    given = container.get("resources") or {}
    return _counted({**(given.get("limits") or {}), **(given.get("requests") or {})}, gpu_resource)


def _counted(named: Mapping[str, str | float], gpu_resource: str, gpus: int = 0) -> Resources:
    if gpu_resource:
        gpus = int(quantity(named.get(gpu_resource, gpus)))
    # Thousandths of a core are the finest that Kubernetes counts: sums of them are to come out even.
    return Resources(round(quantity(named.get("cpu", 0)), 3), int(quantity(named.get("memory", 0))), gpus)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _sum(each: Iterable[Resources]) -> Resources:
    total = sum(each, NOTHING)
    return Resources(round(total.cores, 3), total.memory_bytes, total.gpus)


def _least(one: Resources, other: Resources) -> Resources:
    return Resources(min(one.cores, other.cores), min(one.memory_bytes, other.memory_bytes), min(one.gpus, other.gpus))


def _most(one: Resources, other: Resources) -> Resources:
    return Resources(max(one.cores, other.cores), max(one.memory_bytes, other.memory_bytes), max(one.gpus, other.gpus))
