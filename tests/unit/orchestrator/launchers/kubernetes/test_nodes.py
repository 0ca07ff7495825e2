"""Tests the capacity of a cluster, computed from nodes, pods and quotas as an API server returns them."""

from typing import Any

import pytest
from fake_cluster import GIB, node

from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.kubernetes.nodes import ClusterObjects, capacity_of, quantity, requests_of, takes_pods

GPU = "nvidia.com/gpu"


def pod(at: str, cpu: str = "1", memory: str = "1Gi", *, agent_pod: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "mesh", "labels": {"agent": "yes"} if agent_pod else {}},
        "spec": {
            "nodeName": at,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
            **more,
        },
        "status": {"phase": "Running"},
    }


def template(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t"}, "template": {"spec": spec}}


def sense(
    nodes: list[Any], pods: list[Any] | None = None, quotas: list[Any] | None = None, gpu: str = GPU, **spec: Any
) -> Capacity:
    objects = ClusterObjects(nodes, pods or [], quotas or [], template(**spec))
    return capacity_of(objects, lambda each: each["metadata"]["labels"].get("agent") == "yes", [], gpu)


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "team"}, "spec": spec, "status": {"hard": hard, "used": used}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2.0), ("500m", 0.5), ("1.5Gi", 1.5 * GIB), ("1e3", 1000.0), ("128974848", 128974848.0), ("1k", 1000.0),
     ("12E", 12e18), ("3Mi", 3 * 2.0**20), (4, 4.0), ("100n", 1e-7)],
)  # fmt: skip
def test_kubernetes_quantities_are_parsed(text: str | float, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_requests_of_other_pods_reduce_the_capacity_and_those_of_agent_pods_do_not() -> None:
    capacity = sense([node("a"), node("b")], [pod("a", "500m"), pod("a", "2", "4Gi", agent_pod=True), pod("gone")])
    assert capacity.free is not None
    assert capacity.free.nodes == (Resources(5.5, 11 * GIB, 0), Resources(8.0, 16 * GIB, 0))
    assert capacity.nodes == (Resources(7.5, 15 * GIB, 0), Resources(8.0, 16 * GIB, 0))
    assert capacity.total == Resources(15.5, 31 * GIB, 0)


def test_pods_that_have_ended_reserve_nothing() -> None:
    ended = pod("n1")
    ended["status"]["phase"] = "Succeeded"
    capacity = sense([node()], [ended])
    assert capacity.total.cores == 8.0


def test_a_cordoned_node_keeps_its_pods_and_accepts_no_new_ones() -> None:
    capacity = sense([node("a", unschedulable=True), node("b")], [pod("a", "3", agent_pod=True)])
    assert capacity.free is not None
    assert capacity.free.total.cores == 8.0
    assert capacity.nodes == (Resources(3.0, GIB, 0), Resources(8.0, 16 * GIB, 0))
    alone = sense([node("a", unschedulable=True)])
    assert alone.total == Resources(0.0, 0, 0)
    assert alone.unoccupied.strict


def test_nodes_that_accept_no_agent_pods_do_not_count() -> None:
    down = node("down")
    down["status"]["conditions"][0]["status"] = "Unknown"
    tainted = node("tainted", taints=[{"key": GPU, "effect": "NoSchedule"}])
    tainted_too = node("tainted-too", taints=[{"key": "x", "value": "1", "effect": "NoExecute"}])
    avoided = node("avoided", taints=[{"key": "x", "effect": "PreferNoSchedule"}])
    assert [takes_pods(each, template()) for each in (down, tainted, tainted_too, avoided)] == [False] * 3 + [True]
    tolerant = template(tolerations=[{"key": GPU, "operator": "Exists"}, {"key": "x", "value": "1"}])
    assert takes_pods(tainted, tolerant)
    assert takes_pods(tainted_too, tolerant)
    assert not takes_pods(tainted_too, template(tolerations=[{"key": "x", "value": "2"}]))
    assert takes_pods(tainted_too, template(tolerations=[{"operator": "Exists"}]))
    assert not takes_pods(tainted_too, template(tolerations=[{"operator": "Exists", "effect": "NoSchedule"}]))
    assert takes_pods(avoided, template(nodeSelector={"kubernetes.io/hostname": "avoided"}))
    assert not takes_pods(avoided, template(nodeSelector={"gpu": "h100"}))
    expression = {"key": "gpu", "operator": "In", "values": ["h100"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert not takes_pods(avoided, template(affinity=affinity))


def test_gpus_are_counted_per_node() -> None:
    fresh = node("fresh")
    fresh["status"]["allocatable"][GPU] = "0"
    user = pod("a")
    user["spec"]["containers"][0]["resources"]["limits"] = {GPU: "3"}
    capacity = sense([node("a", gpus=4), node("b", gpus=2), fresh], [user])
    assert capacity.free is not None
    assert [each.gpus for each in capacity.free.nodes] == [1, 2, 0]
    assert capacity.free.largest.gpus == 2
    assert sense([node()]).total.gpus == 0


def test_gpus_provided_by_claims_are_not_counted() -> None:
    assert sense([node()], gpu="").total.gpus > 1000


def test_a_node_with_its_maximum_number_of_pods_is_full() -> None:
    full = node()
    full["status"]["allocatable"]["pods"] = "2"
    assert sense([full], [pod("n1"), pod("n1")]).total == Resources(0.0, 0, 0)


def test_a_pod_reserves_what_the_scheduler_counts() -> None:
    init = {"name": "i", "resources": {"requests": {"cpu": "4", "memory": "1Mi"}}}
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}}
    limited = {"name": "l", "resources": {"limits": {"cpu": "1", GPU: "2"}}}
    several = pod("a", initContainers=[init], containers=[limited, limited])
    assert requests_of(several, GPU) == Resources(4.0, 1 << 20, 4)
    assert requests_of(pod("a", initContainers=[sidecar]), GPU) == Resources(1.25, GIB, 0)
    stated = pod("a", resources={"requests": {"cpu": "3"}}, overhead={"cpu": "100m"})
    assert requests_of(stated, GPU) == Resources(3.1, GIB, 0)


@pytest.mark.parametrize(
    ("hard", "used", "left"),
    [
        ({"requests.cpu": "4"}, {"requests.cpu": "1500m"}, 2.5),
        ({"limits.cpu": "2"}, {}, 2.0),
        ({"requests.cpu": "4"}, {"requests.cpu": "5"}, 0.0),
        ({"pods": "3"}, {"pods": "3"}, 0.0),
        ({"count/jobs.batch": "3"}, {"count/jobs.batch": "2"}, 8.0),
        ({"services": "0"}, {}, 8.0),
    ],
)
def test_quotas_limit_the_capacity_of_the_nodes(hard: dict[str, str], used: dict[str, str], left: float) -> None:
    capacity = sense([node()], quotas=[quota(hard, used)])
    assert capacity.free is not None
    assert capacity.free.total.cores == left


def test_a_quota_includes_what_agent_pods_already_use() -> None:
    running = [pod("n1", "2", agent_pod=True), pod("n1", "1")]
    capacity = sense([node()], running, [quota({"requests.cpu": "4"}, {"requests.cpu": "3"})])
    assert capacity.total.cores == 3.0
    assert capacity.free is not None
    assert capacity.free.total.cores == 1.0


def test_a_quota_with_scopes_is_left_to_the_server() -> None:
    capacity = sense([node()], quotas=[quota({"requests.cpu": "0"}, {}, scopes=["BestEffort"])])
    assert capacity.total.cores == 8.0


def test_places_are_the_nodes_of_running_pods_that_accept_further_pods() -> None:
    def agent_pod(job: str, at: str, phase: str = "Running") -> dict[str, Any]:
        made = pod(at, agent_pod=True)
        made["metadata"]["labels"]["podrace/pod"] = job
        made["status"]["phase"] = phase
        return made

    pods = [
        agent_pod("first", "c"),
        agent_pod("second", "b"),
        agent_pod("on-cordoned", "cordoned"),
        agent_pod("ended", "b", "Succeeded"),
        agent_pod("waiting", ""),
        agent_pod("of-many-hosts", "b"),
        pod("b"),
    ]
    nodes = [node("unused", unschedulable=True), node("cordoned", unschedulable=True), node("b"), node("c")]
    ids = {job: f"T-{job}" for job in ("first", "second", "on-cordoned", "ended", "waiting")}
    objects = ClusterObjects(nodes, pods, [], template())
    capacity = capacity_of(objects, lambda each: each["metadata"]["labels"].get("agent") == "yes", [], GPU, "", ids)
    assert capacity.free is not None
    assert {name: capacity.free.nodes[at].cores for name, at in capacity.places.items()} == {
        "T-first": 7.0,
        "T-second": 5.0,
    }


def test_unscheduled_pods_occupy_capacity() -> None:
    objects = ClusterObjects([node("a", "2"), node("b", "3")], [], [], template())
    capacity = capacity_of(objects, lambda each: False, [Resources(3.0, GIB, 0)], GPU)
    assert capacity.free is not None
    assert capacity.free.nodes == (Resources(2.0, 16 * GIB, 0), Resources(0.0, 15 * GIB, 0))


def test_a_pod_that_fits_on_no_node_stays_in_the_pool() -> None:
    waiting = Resources(1.0, GIB, 0)
    capacity = capacity_of(
        ClusterObjects([node(unschedulable=True)], [], [], template()), lambda each: False, [waiting], GPU
    )
    assert capacity.total == waiting
    assert capacity.nodes == (waiting,)
    assert capacity.free is not None
    assert capacity.free.total.cores == 0.0
