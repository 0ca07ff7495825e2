"""Builds the Secret of a pod: the token of its leader, and the key that its hosts have in common. Pure functions.

The Secret belongs to the Job and is deleted with it. Only the containers of the pod refer to it, so the token is not in
the description of the Job, which more people may read.
"""

from typing import Any

from orchestrator.launchers.base import ListedPod, NewPod, PodEnvironment
from orchestrator.launchers.kubernetes.api_client import Object
from orchestrator.launchers.kubernetes.hosts import PREFIX
from orchestrator.launchers.pod_settings import LEADER, host_settings, leader_settings
from podrace.tournament.v1.tournament_pb2 import PodSpec

LAUNCH_SECONDS = 30 * 86_400.0
"""Lifetime of the token that a pod starts with. A Job may wait long in a queue, or create its pod again after an
eviction, and always uses the same Secret, which this service may not change. The token is useless before the
orchestrator has recorded the pod and after the pod is gone."""


def secret_of(pod: NewPod, pod_environment: PodEnvironment, job: Object) -> dict[str, Any] | None:
    """Builds the Secret of a pod; None if it needs none.

    Args:
        pod: The pod.
        pod_environment: Settings that all pods share.
        job: Its Job, as the API server has created it.
    """
    content = leader_settings(pod, pod_environment, LAUNCH_SECONDS) | host_settings(pod)
    if not content:
        return None
    metadata = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    labels = {key: value for key, value in metadata["labels"].items() if "/" in key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": metadata["name"], "labels": labels, "ownerReferences": [owner]},
        "type": "Opaque",
        "stringData": content,
    }


def secret_of_listed(pod: ListedPod, pod_environment: PodEnvironment, job: Object) -> dict[str, Any] | None:
    """Builds the Secret of a pod that was listed; see `secret_of`. It has the same keys as that of the start."""
    new = NewPod(pod.pod_id, pod.tournament_id, PodSpec(hosts=pod.reserved.hosts))
    return secret_of(new, pod_environment, job)


def secret_environment(pod: NewPod, pod_environment: PodEnvironment, secret: str, role: str) -> list[dict[str, Any]]:
    """Returns the environment variables of a role that come from the Secret: only the leader gets the token."""
    own = leader_settings(pod, pod_environment) if role == LEADER else {}
    return [
        {"name": f"{PREFIX}{key.upper()}", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for key in (*own, *host_settings(pod))
    ]
