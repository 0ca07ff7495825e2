"""Owns what Prometheus is told about pods: where each serves its metrics (HTTP service discovery).

Pods come and go under names that nobody knows beforehand; whoever collects metrics needs neither the engine's socket
nor a list of its own.
"""

import json
from collections.abc import Sequence

from orchestrator.launchers.base import ListedPod

PATH = "/pods"
CONTENT_TYPE = "application/json"


class PrometheusTargets:
    """The pods listed last.

    telemetry.start(config, service="orchestrator", pages={PATH: targets.page})
    targets.update(await launcher.list())
    """

    def __init__(self) -> None:
        """There are none."""
        self._page = page([])

    def update(self, listed: Sequence[ListedPod]) -> None:
        """These run now."""
        self._page = page(listed)

    def page(self) -> tuple[str, bytes]:
        """Content type and body; may be called from another thread."""
        return CONTENT_TYPE, self._page


def page(listed: Sequence[ListedPod]) -> bytes:
    """As `http_sd_configs` of Prometheus reads it: one group a role of a pod, so that each has labels of its own."""
    groups = [
        {
            "targets": [address],
            "labels": {"pod_id": pod.pod_id, "tournament_id": pod.tournament_id, "role": role},
        }
        for pod in listed
        for role, address in pod.metrics.items()
    ]
    return json.dumps(groups).encode()
