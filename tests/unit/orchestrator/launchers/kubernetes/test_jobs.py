"""Tests the Job that the Kubernetes launcher creates for a pod."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_cluster import GIB, FakeCluster, new_pod

from orchestrator.launchers.kubernetes.jobs import gpus_of_roles, job_name, label_value, owner_name
from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.pod_settings import roles_of
from podrace.errors import InvalidArgument
from podrace.tournament.v1.tournament_pb2 import LAYOUT_FUSED


def spec_of(cluster: FakeCluster, job: str = "race-p0") -> dict[str, Any]:
    found: dict[str, Any] = cluster.jobs()[job]["spec"]["template"]["spec"]
    return found


async def test_a_pod_is_a_job_with_its_name_owned_by_the_configmap_of_its_tournament(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod())
    job = cluster.jobs()["race-p0"]
    (owner,) = job["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "podrace-race", "uid": "uid-of-podrace-race",
    }  # fmt: skip
    assert cluster.objects["configmaps"]["podrace-race"]["data"] == {"tournament_id": "race"}
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["podReplacementPolicy"]) == (0, 1, "Failed")
    assert spec["podFailurePolicy"] == {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["ttlSecondsAfterFinished"] > 300
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert spec["template"]["metadata"]["labels"]["team"] == "races"
    assert "note" in job["metadata"]["annotations"]
    assert not any("kubectl" in key for key in job["metadata"]["annotations"])


async def test_the_containers_of_a_separate_pod_share_memory_sockets_and_process_ids(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod())
    spec = spec_of(cluster)
    assert [(each["name"], each["args"]) for each in spec["containers"]] == [
        ("learner", ["learner"]), ("worker-0", ["worker-0"]), ("evaluator", ["evaluator"]),
    ]  # fmt: skip
    assert spec["shareProcessNamespace"] is True
    volumes = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"]}
    assert volumes["shared-memory"] == {"medium": "Memory", "sizeLimit": str(3 * GIB)}
    assert volumes["sockets"]["medium"] == "Memory"
    for container in spec["containers"]:
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {"/run/podrace": "sockets", "/dev/shm": "shared-memory", "/var/cache/podrace": "cache"}
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        assert environment["NCCL_DEBUG"] == "WARN"
        assert environment["PODRACE_AGENTPOD__POD_ID"] == "race-p0"
        assert environment["PODRACE_AGENTPOD__FOLDER"] == "/run/podrace/pod"
        assert environment["PODRACE_AGENTPOD__PLANE_FOLDER"] == "/dev/shm"
        assert environment["PODRACE_AGENTPOD__ORCHESTRATOR"] == "podrace-orchestrator:50051"
    ports = [
        next(each["value"] for each in container["env"] if each["name"].endswith("METRICS_LISTEN"))
        for container in spec["containers"]
    ]
    assert ports == ["0.0.0.0:9090", "0.0.0.0:9091", "0.0.0.0:9092"]


async def test_a_fused_pod_is_one_container_without_shared_namespaces(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(layout=LAYOUT_FUSED, cores=1.5))
    spec = spec_of(cluster)
    (container,) = spec["containers"]
    assert container["name"] == "learner"
    assert container["resources"]["requests"] == {"cpu": "1500m", "memory": str(3 * GIB)}
    assert "shareProcessNamespace" not in spec
    assert "resources" not in spec


async def test_user_code_runs_in_a_container_without_a_token_that_sees_no_other_process(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    """A fused pod, and a pod in one container, had the token in the process, or container, of the simulator."""
    launcher = make(one_container=True)
    for pod in (new_pod(layout=LAYOUT_FUSED), new_pod("race-p1")):
        await launcher.start(replace(pod, user_code=True))
        spec = spec_of(cluster, pod.pod_id)
        leader, *others = spec["containers"]
        assert (leader["args"], others[0]["args"]) == (["learner"], ["worker-0"])
        assert not spec["shareProcessNamespace"]
        for container in spec["containers"]:
            environ = {each["name"]: each.get("value") for each in container["env"]}
            assert environ["PODRACE_AGENTPOD__ISOLATED"] == "True"
            assert "PODRACE_AGENTPOD__TOKEN" not in environ or container is leader


async def test_requests_of_the_containers_add_up_to_the_reservation_of_the_pod(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(cores=1.001, memory_bytes=GIB + 1))
    spec = spec_of(cluster)
    requests = [container["resources"]["requests"] for container in spec["containers"]]
    assert sum(int(each["cpu"].removesuffix("m")) for each in requests) == 1001
    assert sum(int(each["memory"]) for each in requests) == GIB + 1
    whole = {"cpu": "1001m", "memory": str(GIB + 1)}
    assert all(container["resources"]["limits"] == whole for container in spec["containers"])
    assert spec["resources"] == {"requests": whole, "limits": whole}
    assert int(requests[2]["cpu"].removesuffix("m")) == 100


async def test_a_gpu_and_its_adapters_belong_to_one_container(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(gpus=2))
    limits = {each["name"]: each["resources"]["limits"] for each in spec_of(cluster)["containers"]}
    assert [limits[role].get("nvidia.com/gpu") for role in ("learner", "worker-0", "evaluator")] == ["1", "1", None]
    assert [limits[role].get("rdma/shared") for role in ("learner", "worker-0", "evaluator")] == ["1", "1", None]
    seen = [
        next(each["value"] for each in container["env"] if each["name"] == "PODRACE_AGENTPOD__GPUS")
        for container in spec_of(cluster)["containers"]
    ]
    assert seen == ["0", "0", ""]


async def test_a_container_without_a_gpu_sees_none_whatever_its_image_says(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(gpus=2))
    seen = {
        each["name"]: [variable["value"] for variable in each["env"] if variable["name"] == "NVIDIA_VISIBLE_DEVICES"]
        for each in spec_of(cluster)["containers"]
    }
    assert seen == {"learner": [], "worker-0": [], "evaluator": ["void"]}


async def test_claims_of_the_template_give_all_containers_access_to_the_gpus(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    await make(gpu_resource="").start(new_pod(gpus=1))
    for container in spec_of(cluster)["containers"]:
        assert "nvidia.com/gpu" not in container["resources"]["limits"]
        assert {"name": "PODRACE_AGENTPOD__GPUS", "value": "0"} in container["env"]


async def test_all_roles_of_a_pod_may_be_processes_of_one_container_with_all_its_gpus(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    await make(one_container=True).start(new_pod(gpus=8, learners=8))
    spec = spec_of(cluster)
    container = next(each for each in spec["containers"] if each["name"] == "learner")
    assert [each["name"] for each in spec["containers"] if each["name"].startswith(("worker", "evaluator"))] == []
    assert container["args"] == ["pod"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    environ = {each["name"]: each.get("value") for each in container["env"]}
    assert environ["PODRACE_AGENTPOD__GPUS"] == "0,1,2,3,4,5,6,7"
    assert (environ["PODRACE_AGENTPOD__LAYOUT"], environ["PODRACE_AGENTPOD__LEARNERS"]) == ("separate", "8")
    assert "shareProcessNamespace" not in spec
    await make(one_container=True).start(new_pod("race-p1", layout=LAYOUT_FUSED))
    assert spec_of(cluster, "race-p1")["containers"][0]["args"] == ["learner"]


async def test_the_learners_of_a_fused_pod_are_processes_of_one_container_on_each_host(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    for pod_id, hosts in (("race-p0", 1), ("race-p1", 2)):
        pod = new_pod(pod_id, layout=LAYOUT_FUSED, learners=8, gpus=8, hosts=hosts)
        await make(unprotected_collectives=True).start(pod)
        spec = spec_of(cluster, pod_id)
        container = next(each for each in spec["containers"] if each["name"] == "learner")
        assert not [each["name"] for each in spec["containers"] if each["name"].startswith(("learner-", "worker"))]
        assert container["args"] == ["pod"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(8 // hosts)


def test_gpus_that_cannot_be_distributed_over_containers_are_rejected() -> None:
    many, group = new_pod(gpus=4).spec, new_pod(gpus=2, plane="group").spec
    with pytest.raises(InvalidArgument, match=r"pod.gpus = 4: a pod of 3 containers .* can use one GPU each"):
        gpus_of_roles(many, roles_of(many))
    with pytest.raises(InvalidArgument, match=r"pod.gpus = 2: plane 'group' needs one GPU for each of learner, worker"):
        gpus_of_roles(group, roles_of(group))
    fused = new_pod(layout=LAYOUT_FUSED, gpus=8).spec
    assert gpus_of_roles(fused, roles_of(fused)) == {"learner": 8}


def test_invalid_kubernetes_names_become_distinct_valid_ones() -> None:
    assert job_name("race-p0") == "race-p0"
    assert job_name("Race_1-p0") != job_name("race-1-p0")
    assert job_name("r" * 70 + "-p1") != job_name("r" * 70 + "-p2")
    for name in (job_name("Race_1-p0"), job_name("r" * 70 + "-p1"), owner_name("podrace", "-_R_")):
        assert len(name) <= 57
        assert name.strip("-") == name.lower()


def test_an_id_is_the_value_of_a_label_unless_it_is_too_long() -> None:
    for identity in ("race-2xxpit-p0", "Race_2-2xxpit", "a" * 63):
        assert label_value(identity) == identity
    long = [label_value(f"{'a' * 63}-2xxpit-p{number}") for number in range(2)]
    assert long[0] != long[1]
    assert all(len(value) <= 63 for value in long)


async def test_every_role_has_the_image_that_the_specification_names_if_the_operator_allows_it(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    launcher = make(images=("team/*",))
    await launcher.start(new_pod(image="team/robots:2"))
    assert [each["image"] for each in spec_of(cluster)["containers"]] == ["team/robots:2"] * 3
    with pytest.raises(InvalidArgument, match=r"^pod\.image = 'other/robots:2': .*launchers\.kubernetes\.images"):
        await make().start(new_pod(image="other/robots:2"))
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "denied"}}
    statuses = [{"name": "learner", "image": "team/robots:2", "state": waiting}]
    cluster.give_pod("race-p0", "Pending", at="n1", containerStatuses=statuses)
    await launcher.list()
    closed = (await launcher.capacity()).closed
    assert closed.startswith("race-p0 waits: image 'team/robots:2' is not available (ErrImagePull): denied")
