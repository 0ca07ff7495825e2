"""Reports as the kubelet of a node does: the node and its pods exist in a real API server, and no container runs."""

import contextlib
import datetime
import threading
from types import TracebackType
from typing import Any, Self

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

REPORT_SECONDS = 1.0
LEASES = "kube-node-lease"
RESOURCES = {"cpu": "64", "memory": "256Gi", "pods": "110"}


class HollowNode:
    """A node that reports that it is ready, and that its pods run, until it is lost.

    with HollowNode("lost-node") as node:
        ...
        node.lose()
    """

    def __init__(self, name: str) -> None:
        self.name = name
        untyped: Any = config
        untyped.load_kube_config()
        self.core = client.CoreV1Api()
        self._leases = client.CoordinationV1Api()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._report, name=name)

    def __enter__(self) -> Self:
        """Creates the node, and reports from then on."""
        labels = {"kubernetes.io/hostname": self.name}
        self.core.create_node({"metadata": {"name": self.name, "labels": labels}})
        self._leases.create_namespaced_lease(
            LEASES, {"metadata": {"name": self.name}, "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 40}}
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Removes the node and its lease."""
        self.lose()
        for remove in (self.core.delete_node, lambda name: self._leases.delete_namespaced_lease(name, LEASES)):
            with contextlib.suppress(ApiException):
                remove(self.name)

    def lose(self) -> None:
        """Reports nothing more, as after a loss of power."""
        self._lost.set()
        self._thread.join()

    def pods(self) -> list[dict[str, Any]]:
        """The pods that are bound to this node, as plain objects."""
        listed = self.core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={self.name}")
        return [self.core.api_client.sanitize_for_serialization(pod) for pod in listed.items]

    def read(self) -> dict[str, Any]:
        """The node, as a plain object."""
        found: dict[str, Any] = self.core.api_client.sanitize_for_serialization(self.core.read_node(self.name))
        return found

    def ready(self) -> str:
        """The status of its condition `Ready`; empty if it has none."""
        conditions = self.read()["status"].get("conditions") or []
        return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), "")

    def _report(self) -> None:
        while True:
            # The server may be busy, or a pod may just have been deleted; the next report follows.
            with contextlib.suppress(ApiException):
                self._report_node()
                for pod in self.pods():
                    self._report_pod(pod)
            if self._lost.wait(REPORT_SECONDS):
                return

    def _report_node(self) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        status = {"conditions": [ready], "capacity": RESOURCES, "allocatable": RESOURCES}
        self.core.patch_node_status(self.name, {"status": status})
        self._leases.patch_namespaced_lease(self.name, LEASES, {"spec": {"renewTime": now}})

    def _report_pod(self, pod: dict[str, Any]) -> None:
        metadata, names = pod["metadata"], [each["name"] for each in pod["spec"]["containers"]]
        if "deletionTimestamp" in metadata:
            self.core.delete_namespaced_pod(metadata["name"], metadata["namespace"], grace_period_seconds=0)
        elif pod["status"]["phase"] == "Pending":
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            running = {
                "ready": True,
                "restartCount": 0,
                "image": "",
                "imageID": "",
                "state": {"running": {"startedAt": now}},
            }
            status = {
                "phase": "Running",
                "podIP": "10.1.2.3",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": name, **running} for name in names],
            }
            self.core.patch_namespaced_pod_status(metadata["name"], metadata["namespace"], {"status": status})
