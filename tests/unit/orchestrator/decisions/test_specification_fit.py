import pytest

from orchestrator.decisions.resources import Capacity, FreeResources, Resources
from orchestrator.decisions.specification_fit import unfit

GIB = 1 << 30
MACHINE = Capacity(Resources(2.0, 8 * GIB, 0), 8 * GIB)


def cluster(*nodes: Resources) -> Capacity:
    total = Resources(sum(node.cores for node in nodes), sum(node.memory_bytes for node in nodes), 0)
    return Capacity(total, total.memory_bytes, nodes, FreeResources(total, nodes, strict=True))


def found(pod: Resources, capacity: Capacity) -> dict[str, str]:
    return {one.field: one.problem for one in unfit(pod, capacity)}


def test_a_pod_that_fits_is_fine() -> None:
    assert found(Resources(1.0, GIB, 0), MACHINE) == {}
    assert found(Resources(1.0, GIB, 0), cluster(Resources(1.0, GIB, 0))) == {}


def test_everything_that_is_too_large_is_named_at_once() -> None:
    problems = found(Resources(1.0, 4000 * GIB, 64), MACHINE)
    assert problems == {
        "pod.gpus": "= 64: a pod needs 64; this machine has 0",
        "pod.memory_bytes": f"= {4000 * GIB}: a pod needs 4000.0 GiB; this machine has 8.0 GiB",
    }


def test_a_machine_may_run_more_pods_than_cores_but_a_node_may_not() -> None:
    pod = Resources(16.0, GIB, 0)
    assert found(pod, MACHINE) == {}
    assert found(pod, cluster(Resources(4.0, GIB, 0))) == {
        "pod.cores": "= 16: a pod needs 16; the largest node has 4",
    }


def test_reservations_of_other_pods_do_not_count() -> None:
    node = Resources(4.0, 4 * GIB, 0)
    full = Capacity(node, 0, (node,), FreeResources(Resources(0.0, 0, 0), (Resources(0.0, 0, 0),), strict=True))
    assert found(Resources(4.0, 4 * GIB, 0), full) == {}


def test_a_pod_of_several_hosts_needs_as_many_nodes() -> None:
    node = Resources(4.0, 4 * GIB, 0)
    pod = Resources(8.0, 8 * GIB, 0, hosts=2)
    assert found(pod, cluster(node, node)) == {}
    assert list(found(pod, cluster(node))) == ["pod.hosts"]
    assert found(pod, MACHINE) == {"pod.hosts": "= 2: pods run on one machine here; set it to 1"}


def test_the_maxima_of_different_nodes_do_not_make_one_node() -> None:
    pod = Resources(4.0, 8 * GIB, 0)
    assert list(found(pod, cluster(Resources(4.0, GIB, 0), Resources(1.0, 8 * GIB, 0)))) == ["pod.hosts"]


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_a_pod_may_have_all_gpus_of_the_machine(gpus: int) -> None:
    machine = Capacity(Resources(2.0, 8 * GIB, 2), 8 * GIB)
    assert found(Resources(1.0, GIB, gpus), machine) == {}
