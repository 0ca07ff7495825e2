"""Pods of a lost node are replaced by their deadlines: a real orchestrator, and objects as in lost_node.py."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fake_cluster import NAMESPACE, POD_ENVIRONMENT, FakeCluster, node
from fake_services import TOGETHER_SECONDS
from lost_node import STATES

from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

ALONE_SECONDS = 20.0
"""One lease duration, and the limit of a pod that is silent alone."""


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster()
    found.put("nodes", node("n2"))
    return found


@pytest.fixture
async def mesh(cluster: FakeCluster, open_mesh: Callable[..., Any], clock: Any) -> AsyncIterator[Any]:
    launcher = KubernetesLauncher(
        POD_ENVIRONMENT, KubernetesOptions(), find=lambda _: (cluster, NAMESPACE), monotonic=clock.monotonic
    )
    async with launcher, open_mesh(launcher=launcher) as opened:
        yield opened


async def training(mesh: Any, cluster: FakeCluster, spec: Any, nodes: list[str]) -> tuple[str, list[pb.Assignment]]:
    """Starts a tournament with one pod on each of these nodes."""
    name = await mesh.create(spec(minimum_pods=len(nodes), maximum_pods=len(nodes)))
    await mesh.cycle()
    for number, at in enumerate(nodes):
        cluster.give_pod(f"{name}-p{number}", at=at, podIP=f"10.1.2.{number}")
    await mesh.cycle(1.0)
    return name, [await mesh.assigned(f"{name}-p{number}") for number in range(len(nodes))]


@pytest.mark.parametrize("state", STATES)
async def test_a_pod_of_a_lost_node_is_replaced_by_its_deadline_and_its_agent_continues(
    mesh: Any, cluster: FakeCluster, spec: Any, state: str
) -> None:
    name, (lost, other) = await training(mesh, cluster, spec, ["n1", "n2"])
    STATES[state](cluster)
    for _ in range(int(ALONE_SECONDS) + 3):
        await mesh.cycle(1.0)
        await mesh.renew(other)
    assert sorted(cluster.jobs()) == [f"{name}-p1", f"{name}-p2"]
    assert [pod["spec"]["nodeName"] for pod in cluster.objects["pods"].values()] == ["n2"]
    found = await mesh.assigned(f"{name}-p2")
    assert (found.train.agent_id, found.lease_epoch) == (lost.train.agent_id, lost.lease_epoch + 1)


@pytest.mark.parametrize("state", STATES)
async def test_all_pods_of_a_lost_node_are_replaced_by_the_deadline_of_pods_that_are_silent_together(
    mesh: Any, cluster: FakeCluster, spec: Any, state: str
) -> None:
    name, _ = await training(mesh, cluster, spec, ["n1", "n1"])
    STATES[state](cluster)
    for _ in range(int(TOGETHER_SECONDS) + 3):
        await mesh.cycle(1.0)
    assert sorted(cluster.jobs()) == [f"{name}-p2", f"{name}-p3"]
    assert not cluster.objects["pods"]
