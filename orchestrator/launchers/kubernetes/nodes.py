"""Computes the capacity of a cluster for agent pods: what is free on each node, limited by quotas. Pure functions."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.decisions.resources import Capacity, FreeResources, Resources
from orchestrator.launchers.kubernetes import node_affinity
from orchestrator.launchers.kubernetes.api_client import Object

UNKNOWN_GPUS = 1 << 20
"""Used if claims provide the GPUs, because only the scheduler knows how many are free."""
SUFFIXES = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60, "n": 1e-9, "u": 1e-6,
}  # fmt: skip
NO_RESOURCES = Resources(0.0, 0, 0)
FINISHED_PHASES = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ClusterObjects:
    """Objects of the cluster that the capacity depends on, read at about the same time."""

    nodes: Sequence[Object]
    pods: Sequence[Object]
    """Pods of all namespaces that this service may read."""
    quotas: Sequence[Object]
    template: Object
    """PodTemplate of agent pods, which limits the nodes they can run on."""


def quantity(text: str | float) -> float:
    """Parses a Kubernetes quantity: 2, 500m, 1.5Gi, 1e3."""
    text = str(text)
    for length in (2, 1):
        if text[-length:] in SUFFIXES:
            return float(text[:-length]) * SUFFIXES[text[-length:]]
    return float(text)


def capacity_of(
    objects: ClusterObjects,
    is_agent_pod: Callable[[Object], bool],
    unscheduled: Iterable[Resources],
    gpu_resource: str,
    closed: str = "",
    pod_ids: Mapping[str, str] | None = None,
) -> Capacity:
    """Computes the capacity for agent pods.

    A node that accepts no new pods (because it is cordoned, for example) counts with what agent pods have reserved on
    it. A pod that fits on no node counts as well: it keeps its place in the pool and stays pending, so that a cluster
    autoscaler can add nodes for it.

    Args:
        objects: Objects of the cluster.
        is_agent_pod: Whether a Kubernetes pod is an agent pod of this launcher.
        unscheduled: Reservations of agent pods that are not bound to a node yet.
        gpu_resource: Resource name of GPUs; empty: GPUs cannot be counted.
        closed: Why no pod may be started now; empty if pods may be started.
        pod_ids: Ids of pods of one host, by the name of their Job.
    """
    free, totals, held = _bound_resources(objects, is_agent_pod, gpu_resource)
    places = _places(objects, list(free), pod_ids or {})
    quota = quota_left(objects.quotas, gpu_resource)
    unoccupied = FreeResources(_least(_sum(free.values()), quota), tuple(free.values()), strict=True)
    for resources in unscheduled:
        held += resources
        if unoccupied.has_nodes(resources):
            unoccupied -= resources
        else:
            totals += [resources.per_host] * resources.hosts
    return Capacity(
        total=_least(_sum(totals), held + quota),
        # Kubernetes schedules by requests: requested memory is reserved even if the pod has not used it yet.
        available_memory_bytes=1 << 62,
        nodes=tuple(totals) or (NO_RESOURCES,),
        free=unoccupied,
        closed=closed,
        places=places,
    )


def _places(objects: ClusterObjects, nodes: Sequence[str], pod_ids: Mapping[str, str]) -> dict[str, int]:
    """Returns the index of the node of each of these pods, for nodes that accept further pods."""
    accepting = {node["metadata"]["name"] for node in objects.nodes if takes_pods(node, objects.template)}
    indices = {name: index for index, name in enumerate(nodes) if name in accepting}
    found = {}
    for pod in objects.pods:
        pod_id = pod_ids.get((pod["metadata"].get("labels") or {}).get("podrace/pod", ""))
        index = indices.get(pod["spec"].get("nodeName") or "")
        if pod_id is not None and index is not None and pod.get("status", {}).get("phase") not in FINISHED_PHASES:
            found[pod_id] = index
    return found


def _bound_resources(
    objects: ClusterObjects, is_agent_pod: Callable[[Object], bool], gpu_resource: str
) -> tuple[dict[str, Resources], list[Resources], Resources]:
    """What is free by node, what there is for agent pods on each, and what all bound agent pods have reserved."""
    pods_by_node: defaultdict[str, list[Object]] = defaultdict(list)
    for pod in objects.pods:
        node_name = pod["spec"].get("nodeName")
        if node_name and pod.get("status", {}).get("phase") not in FINISHED_PHASES:
            pods_by_node[node_name].append(pod)
    free, totals = {}, []
    for node in objects.nodes:
        name = node["metadata"]["name"]
        pods = pods_by_node[name]
        node_free = _node_free(node, pods, objects.template, gpu_resource)
        reserved = _sum(requests_of(pod, gpu_resource) for pod in pods if is_agent_pod(pod))
        if node_free == NO_RESOURCES and reserved == NO_RESOURCES:
            continue
        free[name] = node_free
        totals.append(node_free + reserved)
    agent_pods = (pod for pods in pods_by_node.values() for pod in pods if is_agent_pod(pod))
    return free, totals, _sum(requests_of(pod, gpu_resource) for pod in agent_pods)


def takes_pods(node: Object, template: Object) -> bool:
    """Whether a node accepts agent pods: it is ready, not cordoned, has the required labels, and no untolerated taint.

    Affinities to other pods are not evaluated: a pod that stays pending because of them stops the growth, and its
    reason is recorded.
    """
    spec = template["template"]["spec"]
    conditions = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions") or []}
    if node["spec"].get("unschedulable") or conditions.get("Ready") != "True":
        return False
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    if not node_affinity.allows(node, spec.get("affinity")):
        return False
    tolerations = spec.get("tolerations") or []
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    return all(any(_tolerates(each, taint) for each in tolerations) for taint in taints)


def requests_of(pod: Object, gpu_resource: str) -> Resources:
    """What a pod reserves: the sum of its containers, its largest init container, or its pod-level request."""
    spec = pod["spec"]
    running = _sum(_requests(container, gpu_resource) for container in spec.get("containers") or [])
    reserved = running
    for container in spec.get("initContainers") or []:
        requests = _requests(container, gpu_resource)
        if container.get("restartPolicy") == "Always":
            # A sidecar runs alongside the other containers.
            reserved, running = reserved + requests, running + requests
        else:
            reserved = _most(reserved, requests)
    stated = (spec.get("resources") or {}).get("requests")
    if stated:
        reserved = _counted({"cpu": reserved.cores, "memory": reserved.memory_bytes, **stated}, "", reserved.gpus)
    return reserved + _counted(spec.get("overhead") or {}, "")


def quota_left(quotas: Iterable[Object], gpu_resource: str) -> Resources:
    """What the quotas of the namespace leave, taking all of them together."""
    left = {"cpu": float("inf"), "memory": float(1 << 62), "gpus": float(UNKNOWN_GPUS)}
    kinds = {"requests.cpu": "cpu", "cpu": "cpu", "limits.cpu": "cpu", "requests.memory": "memory", "memory": "memory"}
    kinds |= {"limits.memory": "memory", f"requests.{gpu_resource}": "gpus"}
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            # Applies to some pods only; the server decides whether agent pods are among them.
            continue
        status = quota.get("status", {})
        for name, hard in (status.get("hard") or {}).items():
            unused = quantity(hard) - quantity((status.get("used") or {}).get(name, "0"))
            if name in ("pods", "count/jobs.batch") and unused <= 0:
                left["cpu"] = 0.0
            elif name in kinds:
                left[kinds[name]] = min(left[kinds[name]], max(unused, 0.0))
    return Resources(left["cpu"], int(left["memory"]), int(left["gpus"]))


def _node_free(node: Object, pods: Sequence[Object], template: Object, gpu_resource: str) -> Resources:
    """What is free on a node; nothing if the node accepts no agent pods."""
    allocatable = node.get("status", {}).get("allocatable") or {}
    if not takes_pods(node, template) or len(pods) >= quantity(allocatable.get("pods", "110")):
        return NO_RESOURCES
    total = _counted(allocatable, gpu_resource, 0 if gpu_resource else UNKNOWN_GPUS)
    free = total - _sum(requests_of(pod, gpu_resource) for pod in pods)
    return Resources(max(free.cores, 0.0), max(free.memory_bytes, 0), max(free.gpus, 0))


def _requests(container: Object, gpu_resource: str) -> Resources:
    resources = container.get("resources") or {}
    return _counted({**(resources.get("limits") or {}), **(resources.get("requests") or {})}, gpu_resource)


def _counted(named: Mapping[str, str | float], gpu_resource: str, gpus: int = 0) -> Resources:
    if gpu_resource:
        gpus = int(quantity(named.get(gpu_resource, gpus)))
    # Kubernetes counts thousandths of a core; rounding keeps sums exact.
    return Resources(round(quantity(named.get("cpu", 0)), 3), int(quantity(named.get("memory", 0))), gpus)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _sum(each: Iterable[Resources]) -> Resources:
    total = sum(each, NO_RESOURCES)
    return Resources(round(total.cores, 3), total.memory_bytes, total.gpus)


def _least(one: Resources, other: Resources) -> Resources:
    return Resources(min(one.cores, other.cores), min(one.memory_bytes, other.memory_bytes), min(one.gpus, other.gpus))


def _most(one: Resources, other: Resources) -> Resources:
    return Resources(max(one.cores, other.cores), max(one.memory_bytes, other.memory_bytes), max(one.gpus, other.gpus))
