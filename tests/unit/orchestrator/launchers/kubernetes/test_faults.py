"""Tests how the Kubernetes launcher handles errors of the API server, and which events it records there."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import NAMESPACE, FakeCluster, ManualMonotonic, failure, new_pod
from kubernetes.config import kube_config

from orchestrator.launchers.base import EventSink
from orchestrator.launchers.kubernetes.api_client import ApiClient, connect
from orchestrator.launchers.kubernetes.event_recorder import BURST, EventRecorder
from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from podrace.errors import FailedPrecondition, InvalidArgument, Unavailable


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (OSError("[Errno 111] Connection refused"), "the Kubernetes API does not respond: .* Connection refused"),
        (failure(500, "etcdserver: leader changed"), "Kubernetes API reports an error: GET .*jobs: 500 etcdserver"),
        (failure(403, 'jobs.batch is forbidden: User "x" cannot list'), "denies permission: .*Role of deploy/k8s/base"),
        (failure(401, "Unauthorized"), "rejects the credentials: Unauthorized"),
        (failure(429, "too many requests"), "is overloaded: too many requests"),
        (failure(404, 'namespaces "mesh" not found'), "there is no namespace 'mesh': .*set kubernetes.namespace"),
    ],
)
async def test_an_error_of_the_server_becomes_one_line_with_a_remedy(
    launcher: KubernetesLauncher, cluster: FakeCluster, trouble: Any, message: str
) -> None:
    cluster.failures["GET", "jobs"] = trouble
    with pytest.raises(Unavailable, match=message) as caught:
        await launcher.list()
    assert "\n" not in caught.value.message
    cluster.failures.clear()
    assert await launcher.list() == []


async def test_a_pause_that_the_server_requests_is_observed(cluster: FakeCluster, monotonic: ManualMonotonic) -> None:
    client = ApiClient(cluster, NAMESPACE, monotonic=monotonic)
    cluster.failures["GET", "jobs"] = failure(429, "slow down", **{"Retry-After": "7"})
    with pytest.raises(Unavailable):
        client.list("batch/v1", "jobs")
    cluster.failures.clear()
    with pytest.raises(Unavailable, match="requested a pause"):
        client.list("batch/v1", "jobs")
    assert len(cluster.requests) == 1
    monotonic.now += 7.0
    assert client.list("batch/v1", "jobs") == []


def test_a_long_list_is_read_in_pages_and_restarted_when_it_expires(cluster: FakeCluster) -> None:
    for number in range(7):
        cluster.put("jobs", {"metadata": {"name": f"j{number}"}, "spec": {}})
    cluster.page, cluster.expired_once = 3, True
    found = ApiClient(cluster, NAMESPACE).list("batch/v1", "jobs")
    assert [job["metadata"]["name"] for job in found] == [f"j{number}" for number in range(7)]


async def test_an_invalid_pod_is_rejected_permanently_and_an_exhausted_quota_temporarily(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    cluster.failures["POST", "jobs"] = failure(422, "Job is invalid: spec.template.spec.nodeSelector: Invalid value")
    with pytest.raises(InvalidArgument, match="the Kubernetes API rejects the request: Job is invalid"):
        await launcher.start(new_pod())
    cluster.failures["POST", "jobs"] = failure(403, "forbidden: exceeded quota: team, used: count/jobs.batch=5")
    with pytest.raises(Unavailable, match="a quota of namespace 'mesh' is exhausted"):
        await launcher.start(new_pod())


async def test_the_error_for_a_missing_template_says_what_to_apply(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    cluster.objects["podtemplates"].clear()
    for kind, call in ((Unavailable, launcher.capacity()), (FailedPrecondition, launcher.start(new_pod()))):
        with pytest.raises(kind, match="no PodTemplate 'podrace-agentpod' in namespace 'mesh': apply"):
            await call


async def test_decisions_become_events_on_the_configmap(launcher: KubernetesLauncher, cluster: FakeCluster) -> None:
    assert isinstance(launcher, EventSink)
    launcher.record_event("pool_short", "a pod needs 1 GPUs, 0 are free", {"tournament_id": "race"})
    launcher.record_event("agent_generated", "a0", {"tournament_id": "race", "agent_id": "a0"})
    launcher.record_event("evaluation_finished", "e0 is done", {"tournament_id": "race"})
    sending = launcher._event_recorder._sending
    assert sending is not None
    await asyncio.gather(sending)
    (event,) = cluster.objects["events"].values()
    assert (event["reason"], event["type"]) == ("PoolShort", "Warning")
    assert event["message"] == "a pod needs 1 GPUs, 0 are free"
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "podrace-race", "namespace": NAMESPACE,
        "uid": "uid-of-podrace-race",
    }  # fmt: skip


async def test_events_are_limited_in_rate_and_never_raise(cluster: FakeCluster, monotonic: ManualMonotonic) -> None:
    """The clock does not advance, so nothing is sent after the burst."""
    sent = asyncio.Event()
    owners = []

    def owner(tournament_id: str) -> Any:
        owners.append(tournament_id)
        if len(owners) == BURST:
            loop.call_soon_threadsafe(sent.set)
        raise Unavailable("the server is down")

    loop = asyncio.get_running_loop()
    event_recorder = EventRecorder(lambda: ApiClient(cluster, NAMESPACE), owner, monotonic=monotonic)
    for number in range(500):
        event_recorder.record_event("pod_started", f"p{number}", {"tournament_id": "race"})
    await sent.wait()
    for _ in range(10):
        # Gives the recorder's thread time to send more.
        await asyncio.to_thread(time.monotonic)
    assert len(owners) == BURST
    assert event_recorder.dropped == 400
    await event_recorder.close()


# --- connecting --------------------------------------------------------------------------------------------------

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {token: secret}}]
contexts: [{name: here, context: {cluster: here, user: me, namespace: races}}]
current-context: here
"""


def test_outside_a_cluster_the_server_and_namespace_of_kubectl_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    # The kubernetes package reads the environment variable only when it is imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    send, namespace = connect("")
    assert namespace == "races"
    assert connect("another")[1] == "another"
    with pytest.raises(Unavailable, match=r"does not respond: .*127.0.0.1.*port=9.*Connection refused"):
        ApiClient(send, namespace).list("v1", "pods")


def test_without_a_cluster_the_error_says_how_to_configure_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nothing"))
    with pytest.raises(Unavailable, match=r"no Kubernetes cluster is configured: .*; run in a cluster, or set KUBEC"):
        connect("")
