"""Decides what makes the pod of several hosts one Indexed Job: a Kubernetes pod a host, each of which finds the head.

Such a Job numbers its pods and names their hosts after itself and the number; the headless Service that the template
names as `subdomain` makes these names known. Number 0 has the head. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.launchers.kubernetes.api_client import Object
from orchestrator.launchers.pod_settings import hosts_of
from podrace.errors import FailedPrecondition
from podrace.tournament.v1.tournament_pb2 import PodSpec

LEADER_PORT = 50070
INDEX = "batch.kubernetes.io/job-completion-index"
PREFIX = "PODRACE_AGENTPOD__"


def part_of(spec: PodSpec) -> PodSpec:
    """What each host of a pod has of it."""
    hosts = hosts_of(spec)
    if hosts == 1:
        return spec
    part = PodSpec()
    part.CopyFrom(spec)
    part.cores, part.memory_bytes = spec.cores / hosts, spec.memory_bytes // hosts
    part.learners, part.gpus, part.hosts = spec.learners // hosts, spec.gpus // hosts, 1
    return part


def completions(spec: PodSpec) -> dict[str, Any]:
    """Fields of the Job's specification that say how many pods it has."""
    hosts = hosts_of(spec)
    return {"completions": hosts, "parallelism": hosts} | ({"completionMode": "Indexed"} if hosts > 1 else {})


def host_environment(job: str, spec: PodSpec, template: Object) -> list[dict[str, Any]]:
    """Variables by which each role knows its host, and where the head is.

    Raises:
        FailedPrecondition: The template names no Service.
    """
    if hosts_of(spec) == 1:
        return []
    subdomain = template["template"]["spec"].get("subdomain")
    if not subdomain:
        name = template["metadata"]["name"]
        raise FailedPrecondition(
            f"PodTemplate {name!r} has no subdomain, and pod.hosts = {spec.hosts}: the hosts of a pod find each other"
            " by a headless Service of that name; apply deploy/k8s"
        )
    number = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    return [
        {"name": f"{PREFIX}HEAD", "value": f"{job}-0.{subdomain}:{LEADER_PORT}"},
        {"name": f"{PREFIX}HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": f"{PREFIX}HOST_INDEX", "valueFrom": number},
    ]


def anti_affinity(job: str, spec: PodSpec, affinity: Mapping[str, Any] | None) -> dict[str, Any]:
    """The template's affinity, and that no node has two hosts of one pod."""
    found = {**(affinity or {})}
    if hosts_of(spec) > 1:
        term = {"labelSelector": {"matchLabels": {"podrace/pod": job}}, "topologyKey": "kubernetes.io/hostname"}
        rules = {**(found.get("podAntiAffinity") or {})}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        found["podAntiAffinity"] = rules | {required: [*(rules.get(required) or []), term]}
    return found


def leader_pods(pods: Sequence[Object]) -> list[Object]:
    """Those of a Job's pods that have the head, or had it before they were replaced."""
    return [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(INDEX, "0") == "0"]
