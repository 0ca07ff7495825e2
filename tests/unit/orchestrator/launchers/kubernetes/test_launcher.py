"""Tests how the Kubernetes launcher interprets responses of an API server, which is faked in memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import GIB, NAMESPACE, POD_ENVIRONMENT, FakeCluster, ManualMonotonic, failure, new_pod, node

from orchestrator.decisions.resources import Resources
from orchestrator.launchers.kubernetes.launcher import LOG_LINE_SECONDS, KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from podrace.tournament.v1.tournament_pb2 import LAYOUT_SEPARATE


async def test_every_launcher_lists_a_pod_as_it_was_started(
    launcher: KubernetesLauncher, make: Callable[..., KubernetesLauncher], cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(gpus=1))
    await launcher.start(new_pod(gpus=1))
    for each in (launcher, make()):
        (pod,) = await each.list()
        assert (pod.pod_id, pod.tournament_id, pod.layout) == ("race-p0", "race", LAYOUT_SEPARATE)
        assert pod.reserved == Resources(2.0, 3 * GIB, 1)
        assert pod.start_time == 1795255200.0
        assert pod.metrics == {}
    assert await make(scope="another").list() == []
    cluster.give_pod("race-p0", podIP="10.1.2.3")
    (pod,) = await launcher.list()
    assert pod.metrics == {"learner": "10.1.2.3:9090", "worker-0": "10.1.2.3:9091", "evaluator": "10.1.2.3:9092"}


async def test_a_foreign_job_with_the_same_labels_is_left_alone(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    cluster.put("jobs", {"metadata": {"name": "theirs", "labels": {"podrace/scope": "podrace"}}, "spec": {}})
    assert await launcher.list() == []
    assert "theirs" in cluster.jobs()


async def test_completed_jobs_are_deleted_and_failed_ones_kept_for_a_while(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    for pod_id, end in (("race-p0", "Complete"), ("race-p1", "Failed")):
        await launcher.start(new_pod(pod_id))
        pod = cluster.give_pod(pod_id, "Succeeded" if end == "Complete" else "Failed")
        cluster.logs[pod["metadata"]["name"]] = f"one\n\x1b[31merror: {end}\x1b[0m\n\n"
        cluster.end(pod_id, end)
    assert await launcher.list() == []
    assert list(cluster.jobs()) == ["race-p1"]
    assert launcher.last_log_line("race-p0") == "error: Complete"
    assert launcher.last_log_line("race-p1") == "error: Failed"
    monotonic.now += 299.0
    await launcher.list()
    assert cluster.jobs()
    monotonic.now += 2.0
    assert await launcher.list() == []
    assert not cluster.jobs()


@pytest.mark.parametrize(
    ("status", "line"),
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
async def test_without_a_log_the_exit_status_is_reported(
    launcher: KubernetesLauncher, cluster: FakeCluster, status: dict[str, Any], line: str
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", "Failed", **status)
    cluster.end("race-p0", "Failed")
    await launcher.list()
    assert launcher.last_log_line("race-p0") == line


async def test_what_is_known_of_a_finished_job_is_forgotten_a_while_after_its_deletion(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    """A reconcile loop may need the last log line some cycles after the Job is deleted."""
    for number in range(5):
        await launcher.start(new_pod(f"race-p{number}"))
        cluster.give_pod(f"race-p{number}", "Failed", reason="Evicted")
        cluster.end(f"race-p{number}", "Failed" if number else "Complete")
    await launcher.list()
    assert list(cluster.jobs()) == [f"race-p{number}" for number in range(1, 5)]
    for _ in range(3):
        monotonic.now += LOG_LINE_SECONDS / 3
        assert launcher.last_log_line("race-p0") == "Evicted"
        await launcher.list()
    assert not cluster.jobs()
    monotonic.now += LOG_LINE_SECONDS / 3
    await launcher.list()
    assert launcher.last_log_line("race-p0") == ""
    assert launcher.last_log_line("race-p4") == "Evicted"
    monotonic.now += LOG_LINE_SECONDS
    for _ in range(2):
        await launcher.list()
        await launcher.capacity()
        monotonic.now += 600.0
    await launcher.capacity()
    assert not cluster.objects["configmaps"]
    for held in (launcher._last_log_line, launcher._since, launcher._complete, launcher._started):
        assert not held


async def test_an_evicted_pod_is_not_dead(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    """With DisruptionTarget the Job is neither failed nor complete; its first pod is dead, the second is pending."""
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
    ("status", "reason"),
    [
        (UNSCHEDULABLE, "no node accepts it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        (WITHOUT_IMAGE, "image 'podrace/agentpod:2' is not available (ErrImageNeverPull): not present with pull"),
        (WITHOUT_SECRET, 'container learner cannot start (CreateContainerConfigError): secret "podrace" not found'),
        (PREPARING, ""),
    ],
)
async def test_no_pod_is_started_while_another_waits_and_the_reason_is_reported(
    launcher: KubernetesLauncher, cluster: FakeCluster, status: dict[str, Any], reason: str
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", "Pending", at="" if status is UNSCHEDULABLE else "n1", **status)
    assert len(await launcher.list()) == 1
    closed = (await launcher.capacity()).closed
    assert closed.startswith(f"race-p0 waits: {reason}") if reason else closed == ""
    cluster.objects["pods"].clear()
    cluster.give_pod("race-p0")
    await launcher.list()
    assert (await launcher.capacity()).closed == ""


async def test_a_pod_that_waits_to_replace_another_one_does_not_keep_pods_from_starting(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(dataclasses.replace(new_pod(), replaces="race-p9"))
    cluster.give_pod("race-p0", "Pending", at="", **UNSCHEDULABLE)
    await launcher.list()
    assert (await launcher.capacity()).closed == ""
    await launcher.start(new_pod("race-p1"))
    cluster.give_pod("race-p1", "Pending", at="", **UNSCHEDULABLE)
    await launcher.list()
    assert (await launcher.capacity()).closed.startswith("race-p1 waits: ")


async def test_a_job_without_a_pod_reports_the_exhausted_quota(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
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
    monotonic.now += 4.0
    cluster.requests.clear()
    await launcher.list()
    assert (await launcher.capacity()).closed == f"race-p0 waits: its pod cannot be created: Error creating: {quota}"
    assert [path for _, path, _, _ in cluster.requests].count(f"/api/v1/namespaces/{NAMESPACE}/events") == 1


async def test_a_suspended_job_waits_for_its_queue(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    await launcher.start(new_pod())
    cluster.jobs()["race-p0"]["spec"]["suspend"] = True
    await launcher.list()
    reason = "race-p0 waits: its Job is suspended: a queue has not admitted it"
    assert (await launcher.capacity()).closed == reason


async def test_stopping_deletes_the_job_which_is_listed_until_its_pod_is_deleted(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0")
    await launcher.stop("race-p0", kill=False)
    assert [pod.pod_id for pod in await launcher.list()] == ["race-p0"]
    assert all("gracePeriodSeconds" not in body for method, _, _, body in cluster.requests if method == "DELETE")
    await launcher.stop("race-p0", kill=True)
    assert not cluster.jobs()
    assert not cluster.objects["pods"]
    deleted = [body for method, path, _, body in cluster.requests if method == "DELETE" and "/pods/" in path]
    assert [body.get("gracePeriodSeconds") for body in deleted] == [None, 0]
    await launcher.stop("race-p0", kill=False)


async def test_a_pod_past_its_grace_period_is_killed(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    """If a node is down, its kubelet never reports that the pod has stopped."""
    await launcher.start(new_pod())
    cluster.give_pod("race-p0")["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
    await launcher.list()
    monotonic.now += 89.0
    await launcher.list()
    assert cluster.objects["pods"]
    monotonic.now += 2.0
    await launcher.list()
    assert not cluster.objects["pods"]
    assert not cluster.jobs()


async def test_a_slowly_terminating_pod_does_not_affect_its_replacement(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0")["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
    cluster.give_pod("race-p0")
    for _ in range(3):
        await launcher.list()
        monotonic.now += 200.0
    assert len(cluster.objects["pods"]) == 2
    assert "deletionTimestamp" not in cluster.jobs()["race-p0"]["metadata"]


async def test_a_pod_that_outlives_its_leader_is_killed(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await launcher.start(new_pod())
    cluster.give_pod("race-p0", containerStatuses=[{"name": "learner", "state": {"terminated": {"exitCode": 1}}}])
    await launcher.list()
    monotonic.now += 31.0
    await launcher.list()
    assert not cluster.jobs()


async def test_a_pod_that_lost_a_role_is_stopped_once(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    await launcher.start(new_pod())
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    states = {"learner": {"running": {}}, "worker-0": ended, "evaluator": {"running": {}}}
    cluster.give_pod("race-p0", containerStatuses=[{"name": name, "state": each} for name, each in states.items()])
    for _ in range(2):
        assert len(await launcher.list()) == 1
    assert launcher.last_log_line("race-p0") == "worker-0 exited: killed: out of memory"
    deleted = [
        (path.split("/")[-2], body.get("propagationPolicy"))
        for method, path, _, body in cluster.requests
        if method == "DELETE"
    ]
    assert deleted == [("jobs", "Foreground"), ("pods", None)]


async def test_the_configmap_of_a_tournament_without_jobs_is_deleted_after_a_while(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await launcher.start(new_pod())

    async def cycle(seconds: float) -> None:
        monotonic.now += seconds
        await launcher.list()
        await launcher.capacity()

    await cycle(0.0)
    await cycle(400.0)
    assert cluster.objects["configmaps"]
    cluster.jobs().clear()
    await cycle(3.0)
    await cycle(299.0)
    assert cluster.objects["configmaps"]
    await cycle(3.0)
    assert not cluster.objects["configmaps"]


async def test_the_resources_of_a_just_started_pod_are_not_free(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    async def free() -> float:
        unoccupied = (await launcher.capacity()).free
        assert unoccupied is not None
        return unoccupied.total.cores

    assert await free() == 8.0
    await launcher.start(new_pod())
    assert await free() == 6.0
    await launcher.list()
    monotonic.now += 10.0
    assert await free() == 6.0, "it is not bound to a node yet"
    cluster.give_pod("race-p0")
    await launcher.list()
    assert await free() == 6.0
    monotonic.now += 10.0
    assert await free() == 6.0
    cluster.objects["pods"].clear()
    cluster.jobs().clear()
    await launcher.list()
    monotonic.now += 10.0
    assert await free() == 8.0


async def test_nodes_are_not_read_in_every_cycle(
    launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await launcher.capacity()
    cluster.put("nodes", node("n2"))
    monotonic.now += 1.9
    assert (await launcher.capacity()).total.cores == 8.0
    monotonic.now += 0.2
    assert (await launcher.capacity()).total.cores == 16.0


async def test_without_access_to_other_namespaces_own_pods_count(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    everywhere = cluster.__call__

    def hiding(method: str, path: str, query: Any, body: Any) -> Any:
        return failure(403, "pods is forbidden") if path == "/api/v1/pods" else everywhere(method, path, query, body)

    hidden = KubernetesLauncher(POD_ENVIRONMENT, KubernetesOptions(), find=lambda namespace: (hiding, NAMESPACE))
    await hidden.start(new_pod())
    cluster.give_pod("race-p0")
    await hidden.list()
    unoccupied = (await hidden.capacity()).free
    assert unoccupied is not None
    assert unoccupied.total.cores == 6.0
