"""Tests an agent pod with several hosts, which is an Indexed Job."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import GIB, FakeCluster, ManualMonotonic, new_pod, node

from orchestrator.decisions.resources import FreeResources, Resources
from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.pod_settings import check_one_host
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.tournament.v1.tournament_pb2 import PodSpec

WIDE: dict[str, Any] = {"hosts": 2, "learners": 4, "cores": 8.0, "memory_bytes": 6 * GIB}


async def started(launcher: KubernetesLauncher, cluster: FakeCluster, **changes: Any) -> dict[str, Any]:
    await launcher.start(new_pod(**{**WIDE, **changes}))
    job: dict[str, Any] = cluster.jobs()["race-p0"]
    return job


def environment_of(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"].removeprefix("PODRACE_AGENTPOD__"): each for each in container["env"]}


async def test_a_pod_with_several_hosts_is_one_indexed_job_whose_pods_find_the_leader(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    spec = (await started(launcher, cluster))["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    pod = spec["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["learner", "learner-1", "worker-0", "worker-1", "evaluator"]
    for container in pod["containers"]:
        variables = environment_of(container)
        assert variables["HEAD"]["value"] == "race-p0-0.podrace-agentpod:50070"
        assert variables["HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        assert variables["HOST_INDEX"]["valueFrom"] == {"fieldRef": {"fieldPath": index}}
        assert (variables["HOSTS"]["value"], variables["LEARNERS"]["value"]) == ("2", "4")
    assert {"name": "head", "containerPort": 50070} in pod["containers"][0]["ports"]


async def test_each_host_requests_its_share_on_a_separate_node(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    pod = (await started(launcher, cluster, gpus=4))["spec"]["template"]["spec"]
    requests = [container["resources"]["requests"] for container in pod["containers"]]
    assert sum(int(each["cpu"].removesuffix("m")) for each in requests) == 4000
    assert sum(int(each["memory"]) for each in requests) == 3 * GIB
    assert sum(int(each["resources"]["limits"].get("nvidia.com/gpu", 0)) for each in pod["containers"]) == 2
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {
        "labelSelector": {"matchLabels": {"podrace/pod": "race-p0"}}, "topologyKey": "kubernetes.io/hostname",
    }  # fmt: skip


async def test_address_and_last_log_line_are_those_of_the_leader(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await started(launcher, cluster)
    cluster.give_pod("race-p0", index=1, podIP="10.0.0.2")
    leader = cluster.give_pod("race-p0", index=0, podIP="10.0.0.1")
    (listed,) = await launcher.list()
    assert listed.metrics["learner"] == "10.0.0.1:9090"
    assert listed.reserved == Resources(8.0, 6 * GIB, 0, hosts=2)
    cluster.logs[leader["metadata"]["name"]] = "error: the leader's own line"
    cluster.give_pod("race-p0", index=1)
    cluster.end("race-p0", "Failed")
    await launcher.list()
    assert launcher.last_log_line("race-p0") == "error: the leader's own line"


async def test_an_exited_learner_of_another_host_is_not_an_exited_leader(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await started(launcher, cluster)
    cluster.give_pod("race-p0", index=0, containerStatuses=[{"name": "learner", "state": {"running": {}}}])
    ended = [{"name": "learner", "state": {"terminated": {"exitCode": 0}}}]
    cluster.give_pod("race-p0", index=1, containerStatuses=ended)
    await launcher.list()
    monotonic.now += 31.0
    await launcher.list()
    assert list(cluster.jobs()) == ["race-p0"]


async def test_unscheduled_hosts_occupy_capacity(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    cluster.put("nodes", node("n2"))
    await started(launcher, cluster)
    for taken in (0, 1, 2):
        if taken:
            cluster.give_pod("race-p0", index=taken - 1, at=f"n{taken}")
        await launcher.list()
        monotonic.now += 10.0
        unoccupied = (await launcher.capacity()).free
        assert unoccupied is not None
        assert unoccupied.total.cores == 8.0, taken
        # While one host is bound, the node of the other is up to the scheduler.
        assert taken == 1 or [each.cores for each in unoccupied.nodes] == [4.0, 4.0]


async def test_a_template_without_a_subdomain_is_rejected(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    del cluster.objects["podtemplates"]["podrace-agentpod"]["template"]["spec"]["subdomain"]
    with pytest.raises(FailedPrecondition, match=r"no subdomain, but pod\.hosts = 2.*apply deploy/k8s"):
        await launcher.start(new_pod(**WIDE))


async def test_several_hosts_are_refused_until_the_operator_says_that_collectives_are_protected(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    launcher = make(unprotected_collectives=False)
    with pytest.raises(InvalidArgument, match=r"pod\.hosts = 2: collectives.*unprotected_collectives = true"):
        await launcher.start(new_pod(**WIDE))
    assert not cluster.jobs()
    allowed = environment_of((await started(make(), cluster))["spec"]["template"]["spec"]["containers"][0])
    assert allowed["UNPROTECTED_COLLECTIVES"]["value"] == "true"


@pytest.mark.parametrize(("nodes", "fits"), [((4.0, 4.0), True), ((8.0, 3.0), False), ((16.0,), False)])
def test_each_host_of_a_pod_needs_a_separate_node(nodes: tuple[float, ...], fits: bool) -> None:
    each = tuple(Resources(cores, 64 * GIB, 8) for cores in nodes)
    unoccupied = FreeResources(sum(each, Resources(0.0, 0, 0)), each, strict=True)
    pod = Resources(8.0, 6 * GIB, 2, hosts=2)
    assert unoccupied.fits(pod) == fits
    if fits:
        left = unoccupied - pod
        assert [node.cores for node in left.nodes] == [0.0, 0.0]
        assert left.total.cores == 0.0
        assert not left.fits(pod)


def test_a_launcher_with_one_host_rejects_a_pod_with_several() -> None:
    with pytest.raises(InvalidArgument, match=r"pod\.hosts = 3: the launcher 'process' has one host; set it to 1"):
        check_one_host(PodSpec(hosts=3), "process")
    check_one_host(PodSpec(), "process")
