"""Serves the metrics addresses of all pods to Prometheus (HTTP service discovery).

Pods have names that are not known in advance. With this list, Prometheus needs no access to the Docker socket and no
separate list. Before the first list of pods, and in a replica that waits until it can lead, the page answers 503:
Prometheus then keeps the pods that it knows, and asks again. An empty list would make it forget them.
"""

import json
from collections.abc import Sequence

from orchestrator.launchers.base import ListedPod

PATH = "/pods"
CONTENT_TYPE = "application/json"


class PrometheusTargets:
    """Metrics addresses of the pods that were listed last.

    telemetry.start(config, service="orchestrator", pages={PATH: targets.page})
    targets.update(await launcher.list())
    """

    def __init__(self) -> None:
        self._page: bytes | None = None

    def update(self, listed: Sequence[ListedPod]) -> None:
        """Sets the running pods."""
        self._page = page(listed)

    def page(self) -> tuple[str, bytes] | None:
        """Returns content type and body, None before the first list; may be called from another thread."""
        return None if self._page is None else (CONTENT_TYPE, self._page)


def page(listed: Sequence[ListedPod]) -> bytes:
    """Formats pods for `http_sd_configs` of Prometheus: one group per role of a pod, each with its own labels."""
    groups = [
        {
            "targets": [address],
            "labels": {"pod_id": pod.pod_id, "tournament_id": pod.tournament_id, "role": role},
        }
        for pod in listed
        for role, address in pod.metrics.items()
    ]
    return json.dumps(groups).encode()
