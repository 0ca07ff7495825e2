"""Tests pods on a lost node with the controllers of a real cluster; what stops reporting is no real kubelet.

Needs KUBECONFIG with administrator rights, and no images. Run by `make test-k8s`.
"""

import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fake_cluster import POD_ENVIRONMENT, ManualMonotonic, new_pod
from hollow_node import HollowNode
from k8s_mesh import KUBECTL, until

from orchestrator.launchers.kubernetes.launcher import LINGER_SECONDS, KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
GRACE_SECONDS = 5
CORES = 40.0
"""Of each pod: no real node of a testbed has as many."""
LOST_SECONDS = 90.0
"""Longest time until the controllers notice that a node is lost."""


def template() -> dict[str, Any]:
    spec = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [{"name": "agentpod", "image": "podrace/agentpod:1", "imagePullPolicy": "Never"}],
    }
    return {"metadata": {"name": "podrace-agentpod"}, "template": {"spec": spec}}


@pytest.fixture
def namespace() -> Iterator[str]:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG")
    if subprocess.run([KUBECTL, "get", "--raw", "/readyz"], capture_output=True).returncode:
        pytest.skip("the cluster of KUBECONFIG does not answer")
    name = f"podrace-lost-{uuid.uuid4().hex[:8]}"
    subprocess.run([KUBECTL, "create", "namespace", name], check=True, capture_output=True)
    yield name
    subprocess.run([KUBECTL, "delete", "namespace", name, "--wait=false"], check=True, capture_output=True)


@pytest.fixture
def node(namespace: str) -> Iterator[HollowNode]:
    """The node that will be lost; pods are started on it alone."""
    with HollowNode(f"{namespace}-n1") as found:
        found.core.create_namespaced_pod_template(namespace, template())
        yield found


@pytest.fixture
def monotonic() -> ManualMonotonic:
    return ManualMonotonic()


@pytest.fixture
async def launcher(namespace: str, monotonic: ManualMonotonic) -> AsyncIterator[KubernetesLauncher]:
    options = KubernetesOptions(namespace=namespace, sense_seconds=0.0)
    async with KubernetesLauncher(POD_ENVIRONMENT, options, monotonic=monotonic) as made:
        yield made


async def start(launcher: KubernetesLauncher, node: HollowNode, pod_id: str) -> None:
    """Starts a pod, and waits until it runs on the node."""
    await until(lambda: node.ready() == "True", "the node to be ready")
    await launcher.start(new_pod(pod_id, cores=CORES))
    await until(lambda: [pod["status"]["phase"] for pod in node.pods()] == ["Running"], "the pod to run")


def phases_of(node: HollowNode, namespace: str) -> list[str]:
    """The phases of all pods of the namespace, wherever they are bound."""
    return sorted(pod.status.phase for pod in node.core.list_namespaced_pod(namespace).items)


async def test_a_pod_whose_node_is_lost_is_killed_without_a_kubelet_and_another_starts_elsewhere(
    launcher: KubernetesLauncher, node: HollowNode, namespace: str
) -> None:
    await start(launcher, node, "race-p0")
    node.lose()
    await until(lambda: node.ready() == "Unknown", "the node to count as lost", seconds=LOST_SECONDS)
    (pod,) = await launcher.list()
    assert pod.started, "its silence must be noticed"
    with HollowNode(f"{namespace}-n2") as other:
        await until(lambda: other.ready() == "True", "the other node to be ready")
        capacity = await launcher.capacity()
        assert capacity.closed == ""
        assert capacity.free is not None
        assert capacity.free.total.cores >= CORES, "the other node is free"
        await launcher.stop("race-p0", kill=True)
        assert await launcher.list() == []
        assert node.pods() == [], "it is deleted without a confirmation of the kubelet"
        await start(launcher, other, "race-p1")


async def test_a_pod_that_is_stopped_on_a_lost_node_is_removed_after_its_grace_period(
    launcher: KubernetesLauncher, node: HollowNode, monotonic: ManualMonotonic, namespace: str
) -> None:
    await start(launcher, node, "race-p0")
    node.lose()
    await until(lambda: node.ready() == "Unknown", "the node to count as lost", seconds=LOST_SECONDS)
    await launcher.stop("race-p0", kill=False)
    assert len(await launcher.list()) == 1
    assert phases_of(node, namespace) == ["Running"], "no kubelet confirms that it stopped"
    monotonic.now += GRACE_SECONDS + LINGER_SECONDS
    await launcher.list()
    await until(lambda: phases_of(node, namespace) == [], "the pod to be removed")
    assert await launcher.list() == []


async def test_a_pod_that_is_evicted_from_a_lost_node_is_replaced_and_the_old_one_does_not_count(
    launcher: KubernetesLauncher, node: HollowNode, namespace: str
) -> None:
    await start(launcher, node, "race-p0")
    node.lose()
    await until(lambda: node.ready() == "Unknown", "the node to count as lost", seconds=LOST_SECONDS)
    (pod,) = node.pods()
    node.core.delete_namespaced_pod(pod["metadata"]["name"], namespace)
    await until(lambda: phases_of(node, namespace) == ["Pending", "Running"], "the Job's next pod")
    assert [one.started for one in await launcher.list()] == [False]
    with HollowNode(f"{namespace}-n2") as other:
        await until(lambda: [each["status"]["phase"] for each in other.pods()] == ["Running"], "the pod to run")
        assert [one.started for one in await launcher.list()] == [True]


async def test_a_pod_whose_node_was_removed_waits_for_another_node(
    launcher: KubernetesLauncher, node: HollowNode, namespace: str
) -> None:
    await start(launcher, node, "race-p0")
    node.lose()
    node.core.delete_node(node.name)
    await until(lambda: phases_of(node, namespace) == ["Pending"], "the Job's next pod", seconds=180.0)
    (pod,) = await launcher.list()
    assert (pod.pod_id, pod.started) == ("race-p0", False)
    with HollowNode(f"{namespace}-n2") as other:
        await until(lambda: [each["status"]["phase"] for each in other.pods()] == ["Running"], "the pod to run")
        assert [each.started for each in await launcher.list()] == [True]
