"""Changes the objects of a fake cluster as the controllers of Kubernetes do when a node is lost.

These are typical states of several versions, written from the documentation and the source of Kubernetes (node
lifecycle controller, taint eviction, garbage collection of pods).
tests/engine/test_k8s_lost_node.py has those of a real cluster.
"""

from collections.abc import Callable
from typing import Any

from fake_cluster import FakeCluster

LOST_AT = "2026-11-21T10:05:00Z"
NODE = "n1"


def _pods(cluster: FakeCluster) -> list[dict[str, Any]]:
    return [pod for pod in cluster.objects.get("pods", {}).values() if pod["spec"].get("nodeName") == NODE]


def not_ready(cluster: FakeCluster) -> None:
    """40 s after its last report the node is unreachable. Its pods keep their phase and their container statuses."""
    lost = cluster.objects["nodes"][NODE]
    lost["status"]["conditions"] = [
        {
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": LOST_AT,
            "message": "Kubelet stopped posting node status.",
        }
    ]  # fmt: skip
    lost["spec"]["taints"] = [
        {"key": "node.kubernetes.io/unreachable", "effect": effect, "timeAdded": LOST_AT}
        for effect in ("NoSchedule", "NoExecute")
    ]
    for pod in _pods(cluster):
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": LOST_AT}]


def evicted(cluster: FakeCluster) -> None:
    """After `tolerationSeconds` the pods are deleted, and stay Terminating: no kubelet confirms that they stopped."""
    not_ready(cluster)
    for pod in _pods(cluster):
        pod["metadata"] |= {"deletionTimestamp": "2026-11-21T10:06:30Z", "deletionGracePeriodSeconds": 60}
        pod["status"]["conditions"].append(
            {
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
            }
        )  # fmt: skip


def unknown(cluster: FakeCluster) -> None:
    """The phase of a pod whose state could not be obtained."""
    not_ready(cluster)
    for pod in _pods(cluster):
        pod["status"]["phase"] = "Unknown"


def node_lost(cluster: FakeCluster) -> None:
    """Older clusters: the node controller sets the reason, and deletes the pod, which stays Terminating."""
    unknown(cluster)
    for pod in _pods(cluster):
        name = pod["metadata"]["name"]
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:10:00Z"
        pod["status"] |= {
            "reason": "NodeLost",
            "message": f"Node {NODE} which was running pod {name} is unresponsive",
        }


def removed(cluster: FakeCluster) -> None:
    """The node is deleted or has the taint `out-of-service`: its pods fail, and the Job controller replaces them."""
    del cluster.objects["nodes"][NODE]
    for pod in _pods(cluster):
        pod["status"]["phase"] = "Failed"
        pod["status"]["conditions"] = [
            {
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
            }
        ]  # fmt: skip
        cluster.give_pod(pod["metadata"]["labels"]["podrace/pod"], "Pending", at="")


STATES: dict[str, Callable[[FakeCluster], None]] = {
    "NotReady": not_ready,
    "Terminating": evicted,
    "Unknown": unknown,
    "NodeLost": node_lost,
}
"""States in which the pod of the lost node is still in the API and never stops by itself."""
