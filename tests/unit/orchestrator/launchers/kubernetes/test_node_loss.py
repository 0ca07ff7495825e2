"""What the launcher makes of the objects of a lost node: typical states, see lost_node.py, and no real loss."""

import pytest
from fake_cluster import FakeCluster, ManualMonotonic, new_pod, node
from lost_node import STATES, evicted, node_lost, removed

from orchestrator.launchers.kubernetes.launcher import LINGER_SECONDS, KubernetesLauncher

GRACE_SECONDS = 60.0
"""Of the template of the fake cluster."""


@pytest.fixture
async def cluster_with_pod(launcher: KubernetesLauncher, cluster: FakeCluster) -> FakeCluster:
    cluster.put("nodes", node("n2"))
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", podIP="10.1.2.3")
    return cluster


@pytest.mark.parametrize("state", STATES)
async def test_a_pod_on_a_lost_node_is_expected_to_call_and_can_be_killed_without_its_kubelet(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster, state: str
) -> None:
    STATES[state](cluster_with_pod)
    (pod,) = await launcher.list()
    assert pod.started, "its silence must be noticed"
    await launcher.stop("race-p0", kill=True)
    assert await launcher.list() == []
    assert not cluster_with_pod.objects["pods"], "it is deleted without a confirmation of the kubelet"


@pytest.mark.parametrize("state", [evicted, node_lost], ids=["Terminating", "NodeLost"])
async def test_a_pod_that_stays_terminating_is_killed_after_its_grace_period(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster, monotonic: ManualMonotonic, state: object
) -> None:
    state(cluster_with_pod)  # type: ignore[operator]
    await launcher.list()
    monotonic.now += GRACE_SECONDS + LINGER_SECONDS - 1
    assert len(await launcher.list()) == 1
    monotonic.now += 1
    await launcher.list()
    assert await launcher.list() == []
    assert not cluster_with_pod.objects["pods"]


@pytest.mark.parametrize("state", STATES)
async def test_a_lost_node_with_a_pod_that_never_stops_keeps_no_other_pod_from_starting(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster, state: str
) -> None:
    STATES[state](cluster_with_pod)
    await launcher.list()
    capacity = await launcher.capacity()
    assert capacity.closed == ""
    assert capacity.free is not None
    assert capacity.free.total.cores == 8.0, "all of the other node, and nothing of the lost one"


async def test_a_stopped_pod_on_a_lost_node_is_killed_after_its_grace_period(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster, monotonic: ManualMonotonic
) -> None:
    """With foreground deletion the Job waits for its pod, which never confirms that it stopped."""
    STATES["NotReady"](cluster_with_pod)
    await launcher.stop("race-p0", kill=False)
    assert len(await launcher.list()) == 1
    monotonic.now += GRACE_SECONDS + LINGER_SECONDS
    await launcher.list()
    assert await launcher.list() == []


async def test_the_pod_that_replaces_one_of_a_lost_node_counts_and_not_the_one_that_stays_terminating(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster, monotonic: ManualMonotonic
) -> None:
    evicted(cluster_with_pod)
    replacement = cluster_with_pod.give_pod("race-p0", "Pending", at="n2")
    (pod,) = await launcher.list()
    assert not pod.started, "it may load its libraries first"
    replacement["status"] = {"phase": "Running", "podIP": "10.1.2.4"}
    for _ in range(3):
        (pod,) = await launcher.list()
        assert pod.metrics["learner"] == "10.1.2.4:9090"
        monotonic.now += 200.0


async def test_a_pod_whose_node_was_removed_waits_for_another_node(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster
) -> None:
    removed(cluster_with_pod)
    (pod,) = await launcher.list()
    assert (pod.pod_id, pod.started) == ("race-p0", False)
    assert (await launcher.capacity()).closed == ""


@pytest.mark.parametrize("state", [evicted, node_lost, removed], ids=["Terminating", "NodeLost", "removed"])
async def test_a_pod_that_kubernetes_removes_with_its_node_is_listed_as_removed(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster, state: object
) -> None:
    assert not (await launcher.list())[0].removed
    state(cluster_with_pod)  # type: ignore[operator]
    assert (await launcher.list())[0].removed


async def test_a_pod_that_its_launcher_stops_is_not_listed_as_removed(
    launcher: KubernetesLauncher, cluster_with_pod: FakeCluster
) -> None:
    await launcher.stop("race-p0", kill=False)
    (pod,) = await launcher.list()
    assert not pod.removed
