"""What the launcher `kubernetes` tells an API server, and makes of what recorded ones have said; one of memory here."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import GIB, NAMESPACE, FakeCluster, failure, node

from orchestrator.launchers import NewPod, Surroundings, Witness
from orchestrator.launchers.announcer import BURST, Announcer
from orchestrator.launchers.cluster import Cluster
from orchestrator.launchers.jobs import gpus_of_roles, job_name, owner_name
from orchestrator.launchers.kubernetes import KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from orchestrator.launchers.settings import roles_of
from orchestrator.scale import Resources
from podrace.errors import InvalidArgument, Unavailable
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import LAYOUT_FUSED, LAYOUT_SEPARATE, PodSpec

AROUND = Surroundings(
    orchestrator="podrace-orchestrator:50051",
    leaderboard="podrace-leaderboard:50052",
    store="minio+http://podrace-store:9000/podrace",
    runtime_folder=Path(),
    log_folder=Path(),
    lifeline="",
    orphan_seconds=60.0,
    telemetry=TelemetryConfig(),
)


class Hands:
    """A clock that a test turns."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def make(cluster: FakeCluster, hands: Hands) -> Callable[..., KubernetesLauncher]:
    def made(**changes: Any) -> KubernetesLauncher:
        return KubernetesLauncher(
            AROUND, KubernetesOptions(**changes), find=lambda namespace: (cluster, NAMESPACE), monotonic=hands
        )

    return made


@pytest.fixture
def launcher(make: Callable[..., KubernetesLauncher]) -> KubernetesLauncher:
    return make()


def new_pod(pod_id: str = "race-p0", **changes: Any) -> NewPod:
    spec = PodSpec(layout=LAYOUT_SEPARATE, workers=1, learners=1, cores=2.0, memory_bytes=3 * GIB, plane="auto")
    for key, value in changes.items():
        setattr(spec, key, value)
    return NewPod(pod_id, "race", spec)


def spec_of(cluster: FakeCluster, job: str = "race-p0") -> dict[str, Any]:
    found: dict[str, Any] = cluster.jobs()[job]["spec"]["template"]["spec"]
    return found


# --- what a pod looks like ---------------------------------------------------------------------------------------


async def test_a_pod_is_a_job_of_its_name_owned_by_the_configmap_of_its_tournament(
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


async def test_a_separate_pod_is_a_container_a_role_that_share_memory_sockets_and_process_ids(
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
        told = {variable["name"]: variable["value"] for variable in container["env"]}
        assert told["NCCL_DEBUG"] == "WARN"
        assert told["PODRACE_AGENTPOD__POD_ID"] == "race-p0"
        assert told["PODRACE_AGENTPOD__FOLDER"] == "/run/podrace/pod"
        assert told["PODRACE_AGENTPOD__PLANE_FOLDER"] == "/dev/shm"
        assert told["PODRACE_AGENTPOD__ORCHESTRATOR"] == "podrace-orchestrator:50051"
    ports = [
        next(each["value"] for each in container["env"] if each["name"].endswith("METRICS_LISTEN"))
        for container in spec["containers"]
    ]
    assert ports == ["0.0.0.0:9090", "0.0.0.0:9091", "0.0.0.0:9092"]


async def test_a_fused_pod_is_one_container_that_shares_nothing(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(layout=LAYOUT_FUSED, cores=1.5))
    spec = spec_of(cluster)
    (container,) = spec["containers"]
    assert container["name"] == "learner"
    assert container["resources"]["requests"] == {"cpu": "1500m", "memory": str(3 * GIB)}
    assert "shareProcessNamespace" not in spec
    assert "resources" not in spec


async def test_containers_ask_together_for_what_the_pod_reserves(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(cores=1.001, memory_bytes=GIB + 1))
    spec = spec_of(cluster)
    asked = [container["resources"]["requests"] for container in spec["containers"]]
    assert sum(int(each["cpu"].removesuffix("m")) for each in asked) == 1001
    assert sum(int(each["memory"]) for each in asked) == GIB + 1
    whole = {"cpu": "1001m", "memory": str(GIB + 1)}
    assert all(container["resources"]["limits"] == whole for container in spec["containers"])
    assert spec["resources"] == {"requests": whole, "limits": whole}
    assert int(asked[2]["cpu"].removesuffix("m")) == 100


async def test_a_gpu_belongs_to_one_container_which_gets_the_adapters_too(
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


async def test_claims_of_the_template_bring_gpus_to_all_containers(
    make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    await make(gpu_resource="").start(new_pod(gpus=1))
    for container in spec_of(cluster)["containers"]:
        assert "nvidia.com/gpu" not in container["resources"]["limits"]
        assert {"name": "PODRACE_AGENTPOD__GPUS", "value": "0"} in container["env"]


def test_gpus_that_containers_cannot_be_given_are_refused() -> None:
    many, group = new_pod(gpus=4).spec, new_pod(gpus=2, plane="group").spec
    with pytest.raises(InvalidArgument, match=r"pod.gpus = 4: a pod of 3 containers .* takes one each at most"):
        gpus_of_roles(many, roles_of(many))
    with pytest.raises(InvalidArgument, match=r"pod.gpus = 2: plane 'group' needs one for each of learner, worker-0"):
        gpus_of_roles(group, roles_of(group))
    fused = new_pod(layout=LAYOUT_FUSED, gpus=8).spec
    assert gpus_of_roles(fused, roles_of(fused)) == {"learner": 8}


def test_names_that_kubernetes_does_not_allow_stay_apart() -> None:
    assert job_name("race-p0") == "race-p0"
    assert job_name("Race_1-p0") != job_name("race-1-p0")
    assert job_name("r" * 70 + "-p1") != job_name("r" * 70 + "-p2")
    for name in (job_name("Race_1-p0"), job_name("r" * 70 + "-p1"), owner_name("podrace", "-_R_")):
        assert len(name) <= 57
        assert name.strip("-") == name.lower()


# --- what runs ---------------------------------------------------------------------------------------------------


async def test_a_pod_is_listed_as_it_was_started_by_whoever_looks(
    launcher: KubernetesLauncher, make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(gpus=1))
    await launcher.start(new_pod(gpus=1))
    for looking in (launcher, make()):
        (pod,) = await looking.list()
        assert (pod.pod_id, pod.tournament_id, pod.layout) == ("race-p0", "race", LAYOUT_SEPARATE)
        assert pod.reserved == Resources(2.0, 3 * GIB, 1)
        assert pod.start_time == 1795255200.0
        assert pod.metrics == {}
    assert await make(scope="another").list() == []
    cluster.give_pod("race-p0", podIP="10.1.2.3")
    (pod,) = await launcher.list()
    assert pod.metrics == {"learner": "10.1.2.3:9090", "worker-0": "10.1.2.3:9091", "evaluator": "10.1.2.3:9092"}


async def test_somebody_elses_job_with_our_labels_is_left_alone(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    cluster.put("jobs", {"metadata": {"name": "theirs", "labels": {"podrace/scope": "podrace"}}, "spec": {}})
    assert await launcher.list() == []
    assert "theirs" in cluster.jobs()


async def test_what_has_completed_is_deleted_and_what_failed_is_kept_for_a_while(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    for pod_id, end in (("race-p0", "Complete"), ("race-p1", "Failed")):
        await launcher.start(new_pod(pod_id))
        pod = cluster.give_pod(pod_id, "Succeeded" if end == "Complete" else "Failed")
        cluster.logs[pod["metadata"]["name"]] = f"one\n\x1b[31merror: {end}\x1b[0m\n\n"
        cluster.end(pod_id, end)
    assert await launcher.list() == []
    assert list(cluster.jobs()) == ["race-p1"]
    assert launcher.last_words("race-p0") == "error: Complete"
    assert launcher.last_words("race-p1") == "error: Failed"
    hands.now += 299.0
    await launcher.list()
    assert cluster.jobs()
    hands.now += 2.0
    assert await launcher.list() == []
    assert not cluster.jobs()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"containerStatuses": [{"name": "learner", "state": {"terminated": {"exitCode": 3}}}]}, "exit code 3"),
        (
            {"containerStatuses": [{"name": "learner", "state": {"terminated": {"reason": "OOMKilled"}}}]},
            "killed: out of memory",
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            "Evicted: The node was low on resource: memory.",
        ),
        ({}, ""),
    ],
)
async def test_who_said_nothing_is_known_by_how_it_ended(
    launcher: KubernetesLauncher, cluster: FakeCluster, status: dict[str, Any], said: str
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", "Failed", **status)
    cluster.end("race-p0", "Failed")
    await launcher.list()
    assert launcher.last_words("race-p0") == said


async def test_a_pod_that_was_pushed_out_lives_on_in_its_job(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    """DisruptionTarget: the Job is neither failed nor complete, its first pod is dead, the second waits for a node."""
    await launcher.start(new_pod())
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    cluster.give_pod("race-p0", "Failed", conditions=[condition])
    cluster.give_pod("race-p0", "Pending", at="")
    (pod,) = await launcher.list()
    assert pod.pod_id == "race-p0"
    assert (await launcher.capacity()).closed == ""


UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ]
}  # fmt: skip
WITHOUT_IMAGE = {
    "containerStatuses": [
        {
            "name": "learner", "image": "podrace/agentpod:2",
            "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not present with pull policy of Never"}},
        }
    ]
}  # fmt: skip
WITHOUT_SECRET = {
    "containerStatuses": [
        {
            "name": "learner",
            "state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "podrace" not found'}},
        }
    ]
}
PREPARING = {"containerStatuses": [{"name": "learner", "state": {"waiting": {"reason": "ContainerCreating"}}}]}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (UNSCHEDULABLE, "no node takes it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        (WITHOUT_IMAGE, "image 'podrace/agentpod:2' cannot be had (ErrImageNeverPull): not present with pull policy"),
        (WITHOUT_SECRET, 'container learner cannot be made (CreateContainerConfigError): secret "podrace" not found'),
        (PREPARING, ""),
    ],
)
async def test_growth_stops_while_a_pod_waits_and_says_for_what(
    launcher: KubernetesLauncher, cluster: FakeCluster, status: dict[str, Any], said: str
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", "Pending", at="" if status is UNSCHEDULABLE else "n1", **status)
    assert len(await launcher.list()) == 1
    closed = (await launcher.capacity()).closed
    assert closed.startswith(f"race-p0 waits: {said}") if said else closed == ""
    cluster.objects["pods"].clear()
    cluster.give_pod("race-p0")
    await launcher.list()
    assert (await launcher.capacity()).closed == ""


async def test_a_job_without_a_pod_tells_which_quota_is_in_the_way(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    for pod_id in ("race-p0", "race-p1"):
        await launcher.start(new_pod(pod_id))
    quota = 'pods "race-p0-x" is forbidden: exceeded quota: team, requested: requests.cpu=2, limited: requests.cpu=1'
    for number, message in enumerate(("an older reason", f"Error creating: {quota}")):
        cluster.put(
            "events",
            {
                "metadata": {"name": f"e{number}"},
                "reason": "FailedCreate",
                "message": message,
                "lastTimestamp": f"2026-11-21T10:00:0{number}Z",
            },
        )
    await launcher.list()
    assert (await launcher.capacity()).closed == ""
    hands.now += 4.0
    cluster.asked.clear()
    await launcher.list()
    assert (await launcher.capacity()).closed == f"race-p0 waits: its pod cannot be made: Error creating: {quota}"
    assert [path for _, path, _, _ in cluster.asked].count(f"/api/v1/namespaces/{NAMESPACE}/events") == 1


async def test_a_suspended_job_waits_for_its_queue(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    await launcher.start(new_pod())
    cluster.jobs()["race-p0"]["spec"]["suspend"] = True
    await launcher.list()
    said = "race-p0 waits: its Job is suspended: a queue has not admitted it"
    assert (await launcher.capacity()).closed == said


# --- how it goes -------------------------------------------------------------------------------------------------


async def test_to_stop_is_to_delete_the_job_which_is_listed_until_its_pod_has_gone(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0")
    await launcher.stop("race-p0", kill=False)
    assert [pod.pod_id for pod in await launcher.list()] == ["race-p0"]
    await launcher.stop("race-p0", kill=True)
    assert not cluster.jobs()
    assert not cluster.objects["pods"]
    deleted = [body for method, path, _, body in cluster.asked if method == "DELETE" and "/pods/" in path]
    assert [body["gracePeriodSeconds"] for body in deleted] == [0]
    await launcher.stop("race-p0", kill=False)


async def test_what_stays_beyond_its_grace_is_killed(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    """A node that is away: its kubelet never says that the pod has gone."""
    await launcher.start(new_pod())
    cluster.give_pod("race-p0")["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
    await launcher.list()
    hands.now += 89.0
    await launcher.list()
    assert cluster.objects["pods"]
    hands.now += 2.0
    await launcher.list()
    assert not cluster.objects["pods"]
    assert not cluster.jobs()


async def test_a_pod_that_outlives_its_head_is_killed(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", containerStatuses=[{"name": "learner", "state": {"terminated": {"exitCode": 1}}}])
    await launcher.list()
    hands.now += 31.0
    await launcher.list()
    assert not cluster.jobs()


async def test_the_configmap_of_a_tournament_goes_when_it_has_had_no_job_for_a_while(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    await launcher.start(new_pod())

    async def look(seconds: float) -> None:
        hands.now += seconds
        await launcher.list()
        await launcher.capacity()

    await look(0.0)
    await look(400.0)
    assert cluster.objects["configmaps"]
    cluster.jobs().clear()
    await look(3.0)
    await look(299.0)
    assert cluster.objects["configmaps"]
    await look(3.0)
    assert not cluster.objects["configmaps"]


# --- what is wrong with the server -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (OSError("[Errno 111] Connection refused"), "the Kubernetes API does not answer: .* Connection refused"),
        (failure(500, "etcdserver: leader changed"), "the Kubernetes API fails: GET .*jobs: 500 etcdserver"),
        (failure(403, 'jobs.batch is forbidden: User "x" cannot list'), "forbids it: .*Role of deploy/k8s/base"),
        (failure(401, "Unauthorized"), "does not know who asks: Unauthorized"),
        (failure(429, "too many requests"), "is overloaded: too many requests"),
        (failure(404, 'namespaces "mesh" not found'), "there is no namespace 'mesh': .*set kubernetes.namespace"),
    ],
)
async def test_what_is_wrong_with_the_server_is_one_line_with_a_way_out(
    launcher: KubernetesLauncher, cluster: FakeCluster, trouble: Any, said: str
) -> None:
    cluster.failures["GET", "jobs"] = trouble
    with pytest.raises(Unavailable, match=said) as caught:
        await launcher.list()
    assert "\n" not in caught.value.message
    cluster.failures.clear()
    assert await launcher.list() == []


async def test_a_server_that_asks_for_a_pause_gets_it(cluster: FakeCluster, hands: Hands) -> None:
    asking = Cluster(cluster, NAMESPACE, monotonic=hands)
    cluster.failures["GET", "jobs"] = failure(429, "slow down", **{"Retry-After": "7"})
    with pytest.raises(Unavailable):
        asking.list("batch/v1", "jobs")
    cluster.failures.clear()
    with pytest.raises(Unavailable, match="has asked for a pause"):
        asking.list("batch/v1", "jobs")
    assert len(cluster.asked) == 1
    hands.now += 7.0
    assert asking.list("batch/v1", "jobs") == []


def test_a_long_list_comes_in_pages_and_begins_anew_when_it_has_expired(cluster: FakeCluster) -> None:
    for number in range(7):
        cluster.put("jobs", {"metadata": {"name": f"j{number}"}, "spec": {}})
    cluster.page, cluster.expired_once = 3, True
    found = Cluster(cluster, NAMESPACE).list("batch/v1", "jobs")
    assert [job["metadata"]["name"] for job in found] == [f"j{number}" for number in range(7)]


async def test_a_pod_that_the_server_refuses_for_good_is_refused_for_good(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    cluster.failures["POST", "jobs"] = failure(422, "Job is invalid: spec.template.spec.nodeSelector: Invalid value")
    with pytest.raises(InvalidArgument, match="the Kubernetes API refuses it: Job is invalid"):
        await launcher.start(new_pod())
    cluster.failures["POST", "jobs"] = failure(403, "forbidden: exceeded quota: team, used: count/jobs.batch=5")
    with pytest.raises(Unavailable, match="a quota of namespace 'mesh' is exhausted"):
        await launcher.start(new_pod())


async def test_a_namespace_without_a_template_says_what_to_apply(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    cluster.objects["podtemplates"].clear()
    for ask in (launcher.capacity(), launcher.start(new_pod())):
        with pytest.raises(Unavailable, match="no PodTemplate 'podrace-agentpod' in namespace 'mesh': apply"):
            await ask


# --- what there is -----------------------------------------------------------------------------------------------


async def test_what_was_just_started_is_no_longer_free(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    async def free() -> float:
        room = (await launcher.capacity()).free
        assert room is not None
        return room.total.cores

    assert await free() == 8.0
    await launcher.start(new_pod())
    assert await free() == 6.0
    await launcher.list()
    hands.now += 10.0
    assert await free() == 6.0, "no node has taken it yet"
    cluster.give_pod("race-p0")
    await launcher.list()
    assert await free() == 6.0
    hands.now += 10.0
    assert await free() == 6.0
    cluster.objects["pods"].clear()
    cluster.jobs().clear()
    await launcher.list()
    hands.now += 10.0
    assert await free() == 8.0


async def test_nodes_are_not_asked_for_at_every_look(
    launcher: KubernetesLauncher, cluster: FakeCluster, hands: Hands
) -> None:
    await launcher.capacity()
    cluster.put("nodes", node("n2"))
    hands.now += 1.9
    assert (await launcher.capacity()).total.cores == 8.0
    hands.now += 0.2
    assert (await launcher.capacity()).total.cores == 16.0


async def test_where_other_namespaces_are_hidden_our_own_pods_count(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    everywhere = cluster.__call__

    def hiding(method: str, path: str, query: Any, body: Any) -> Any:
        return failure(403, "pods is forbidden") if path == "/api/v1/pods" else everywhere(method, path, query, body)

    hidden = KubernetesLauncher(AROUND, KubernetesOptions(), find=lambda namespace: (hiding, NAMESPACE))
    await hidden.start(new_pod())
    cluster.give_pod("race-p0")
    await hidden.list()
    room = (await hidden.capacity()).free
    assert room is not None
    assert room.total.cores == 6.0


# --- events ------------------------------------------------------------------------------------------------------


async def test_decisions_become_events_on_the_configmap(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    assert isinstance(launcher, Witness)
    launcher.note("pool_short", "a pod needs 1 GPUs, 0 are free", {"tournament_id": "race"})
    launcher.note("agent_generated", "a0", {"tournament_id": "race", "agent_id": "a0"})
    await asyncio.gather(launcher._announcer._sending)
    (event,) = cluster.objects["events"].values()
    assert (event["reason"], event["type"]) == ("PoolShort", "Warning")
    assert event["message"] == "a pod needs 1 GPUs, 0 are free"
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "podrace-race", "namespace": NAMESPACE,
        "uid": "uid-of-podrace-race",
    }  # fmt: skip


async def test_events_are_few_and_never_in_the_way(cluster: FakeCluster, hands: Hands) -> None:
    """The clock stands still: after the burst nothing more is sent, and nothing of it raises."""
    sent = asyncio.Event()
    owners = []

    def owner(tournament_id: str) -> Any:
        owners.append(tournament_id)
        if len(owners) == BURST:
            loop.call_soon_threadsafe(sent.set)
        raise Unavailable("away")

    loop = asyncio.get_running_loop()
    announcer = Announcer(lambda: Cluster(cluster, NAMESPACE), owner, monotonic=hands)
    for number in range(500):
        announcer.note("pod_started", f"p{number}", {"tournament_id": "race"})
    await sent.wait()
    for _ in range(10):
        # Time enough for more, on the same threads.
        await asyncio.to_thread(time.monotonic)
    assert len(owners) == BURST
    assert announcer.dropped == 400
    await announcer.close()
