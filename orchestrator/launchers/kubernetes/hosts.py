"""Builds the parts of a Job for a pod with several hosts: an Indexed Job with one Kubernetes pod per host.

An Indexed Job numbers its pods and derives their host names from its own name and the number. The headless Service that
the template sets as `subdomain` makes these names resolvable. The pod with number 0 has the leader. Pure functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.launchers.kubernetes.api_client import Object
from orchestrator.launchers.pod_settings import hosts_of
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.tournament.v1.tournament_pb2 import PodSpec

LEADER_PORT = 50070
INDEX = "batch.kubernetes.io/job-completion-index"
PREFIX = "PODRACE_AGENTPOD__"


def share_of_host(spec: PodSpec) -> PodSpec:
    """The share of a pod's specification that each of its hosts gets."""
    hosts = hosts_of(spec)
    if hosts == 1:
        return spec
    share = PodSpec()
    share.CopyFrom(spec)
    share.cores, share.memory_bytes = spec.cores / hosts, spec.memory_bytes // hosts
    share.learners, share.gpus, share.hosts = spec.learners // hosts, spec.gpus // hosts, 1
    return share


def completions(spec: PodSpec) -> dict[str, Any]:
    """Fields of the Job's specification that set its number of pods."""
    hosts = hosts_of(spec)
    return {"completions": hosts, "parallelism": hosts} | ({"completionMode": "Indexed"} if hosts > 1 else {})


def host_environment(
    job: str, spec: PodSpec, template: Object, *, unprotected_collectives: bool
) -> list[dict[str, Any]]:
    """Environment variables with the address of the role's host and of the leader.

    Raises:
        FailedPrecondition: The template has no subdomain.
        InvalidArgument: Collectives would cross a network that the operator has not declared to be protected.
    """
    if hosts_of(spec) == 1:
        return []
    if not unprotected_collectives:
        raise InvalidArgument(
            f"pod.hosts = {spec.hosts}: collectives between hosts have no TLS; protect them (component"
            " network-policies), and set launchers.kubernetes.unprotected_collectives = true"
        )
    subdomain = template["template"]["spec"].get("subdomain")
    if not subdomain:
        name = template["metadata"]["name"]
        raise FailedPrecondition(
            f"PodTemplate {name!r} has no subdomain, but pod.hosts = {spec.hosts}: the hosts of a pod find each other"
            " through a headless Service of that name; apply deploy/k8s"
        )
    number = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    return [
        {"name": f"{PREFIX}HEAD", "value": f"{job}-0.{subdomain}:{LEADER_PORT}"},
        {"name": f"{PREFIX}HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": f"{PREFIX}HOST_INDEX", "valueFrom": number},
        {"name": f"{PREFIX}UNPROTECTED_COLLECTIVES", "value": "true"},
    ]


def anti_affinity(job: str, spec: PodSpec, affinity: Mapping[str, Any] | None) -> dict[str, Any]:
    """The template's affinity, extended so that two hosts of a pod never share a node."""
    found = {**(affinity or {})}
    if hosts_of(spec) > 1:
        term = {"labelSelector": {"matchLabels": {"podrace/pod": job}}, "topologyKey": "kubernetes.io/hostname"}
        rules = {**(found.get("podAntiAffinity") or {})}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        found["podAntiAffinity"] = rules | {required: [*(rules.get(required) or []), term]}
    return found


def leader_pods(pods: Sequence[Object]) -> list[Object]:
    """Those of a Job's pods that run the leader, including pods that were replaced."""
    return [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(INDEX, "0") == "0"]
