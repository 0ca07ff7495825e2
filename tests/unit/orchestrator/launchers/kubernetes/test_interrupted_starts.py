"""An orchestrator that dies between two calls of a pod start leaves no Job that waits forever or closes the pool."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from fake_cluster import GIB, NAMESPACE, PATH, POD_ENVIRONMENT, FakeCluster, ManualMonotonic, failure, new_pod

from orchestrator.launchers.base import NewPod
from orchestrator.launchers.kubernetes.api_client import ApiResponse
from orchestrator.launchers.kubernetes.launcher import SECRET_SECONDS, KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.tokens import AUDIENCE, PodTokens

NOW = 1_800_000_000.0
KEY = MeshKey(make_pem(), lambda: NOW)
WITH_KEY = replace(POD_ENVIRONMENT, pod_tokens=PodTokens(KEY, lambda: NOW))
PODS = {
    "one host": new_pod(),
    "two hosts": new_pod(hosts=2, learners=2, cores=4.0, memory_bytes=6 * GIB),
}
CALLS = ["configmaps", "configmaps", "podtemplates", "jobs", "secrets"]
"""The calls of a start, in their order."""
DENIED = failure(403, "secrets is forbidden")
Make = Callable[..., KubernetesLauncher]


class Killed(BaseException):
    """The process is killed: nothing after it is executed."""


@pytest.fixture
def make(cluster: FakeCluster, monotonic: ManualMonotonic) -> Make:
    """Makes launchers of a mesh with a key; one that is given a number of calls is killed before the next call."""

    def made(calls: int | None = None) -> KubernetesLauncher:
        left = [calls]

        def send(method: str, path: str, query: Mapping[str, str], body: Any) -> ApiResponse:
            if left[0] is not None:
                if not left[0]:
                    raise Killed
                left[0] -= 1
            response: ApiResponse = cluster(method, path, query, body)
            return response

        return KubernetesLauncher(
            *(WITH_KEY, KubernetesOptions(unprotected_collectives=True)),
            find=lambda namespace: (send, NAMESPACE),
            monotonic=monotonic,
        )

    return made


def run_nodes(cluster: FakeCluster) -> None:
    """Creates the pods of each Job, as nodes do: a container with a reference to a Secret waits until it exists."""
    cluster.objects["pods"] = {}
    for name, job in list(cluster.jobs().items()):
        keys = cluster.objects.get("secrets", {}).get(name, {}).get("stringData", {}).keys()
        containers = job["spec"]["template"]["spec"]["containers"]
        missing = [one["name"] for one in containers if not referred(one) <= keys]
        waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}}
        statuses = [{"name": one, "state": waiting} for one in missing]
        for index in range(job["spec"].get("completions", 1)):
            pod = {"containerStatuses": statuses} if missing else {"podIP": "10.1.2.3"}
            cluster.give_pod(name, "Pending" if missing else "Running", index=index, **pod)


def referred(container: Mapping[str, Any]) -> set[str]:
    return {one["valueFrom"]["secretKeyRef"]["key"] for one in container["env"] if "secretKeyRef" in str(one)}


async def closed(launcher: KubernetesLauncher, cluster: FakeCluster, monotonic: ManualMonotonic) -> str:
    """Returns why no pod may be started after some cycles of a reconcile loop."""
    reason = ""
    for _ in range(3):
        run_nodes(cluster)
        await launcher.list()
        reason = (await launcher.capacity()).closed
        monotonic.now += 1.0
    return reason


async def test_these_are_the_calls_of_a_start(make: Make, cluster: FakeCluster) -> None:
    await make().start(new_pod())
    matches = [PATH.fullmatch(path) for _, path, _, _ in cluster.requests]
    assert [match["kind"] for match in matches if match] == CALLS


@pytest.mark.parametrize("calls", range(len(CALLS) + 1))
@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
async def test_a_start_is_completed_wherever_the_orchestrator_died(
    make: Make, cluster: FakeCluster, monotonic: ManualMonotonic, pod: NewPod, calls: int
) -> None:
    if calls < len(CALLS):
        with pytest.raises(Killed):
            await make(calls).start(pod)
    else:
        await make(calls).start(pod)
    successor = make()
    assert await closed(successor, cluster, monotonic) == ""
    begun = CALLS[:calls].count("jobs")
    assert [one.started for one in await successor.list()] == [True] * begun
    secrets = cluster.objects.get("secrets", {})
    assert len(secrets) == begun
    for secret in secrets.values():
        assert secret["metadata"]["ownerReferences"][0]["uid"] == cluster.jobs()["race-p0"]["metadata"]["uid"]
        claims = KEY.public.verify(secret["stringData"]["token"], audience=AUDIENCE)
        assert (claims["sub"], claims["tournament"]) == ("pod/race-p0", "race")


@pytest.mark.parametrize("calls", [len(CALLS), len(CALLS) + 1])
async def test_an_orchestrator_that_died_before_it_deleted_a_job_without_a_secret_is_succeeded(
    make: Make, cluster: FakeCluster, monotonic: ManualMonotonic, calls: int
) -> None:
    cluster.failures["POST", "secrets"] = DENIED
    with pytest.raises(Exception if calls > len(CALLS) else Killed):
        await make(calls).start(new_pod())
    cluster.failures.clear()
    assert await closed(make(), cluster, monotonic) == ""


async def test_a_job_whose_secret_cannot_be_created_is_killed_after_a_while(
    make: Make, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    cluster.failures["POST", "secrets"] = DENIED
    with pytest.raises(Killed):
        await make(len(CALLS)).start(new_pod())
    successor = make()
    assert "secret" in await closed(successor, cluster, monotonic)
    monotonic.now += SECRET_SECONDS - 6.0
    assert "secret" in await closed(successor, cluster, monotonic)
    assert await closed(successor, cluster, monotonic) == ""
    assert not cluster.jobs()
    assert successor.last_log_line("race-p0").startswith("its Secret cannot be created: the Kubernetes API denies")


async def test_secrets_of_running_pods_are_not_created_again_and_none_is_read(
    make: Make, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    """The orchestrator may create Secrets, but neither list nor read them."""
    first = make()
    await first.start(new_pod())
    assert await closed(first, cluster, monotonic) == ""
    assert await closed(make(), cluster, monotonic) == ""
    requests = [method for method, path, _, _ in cluster.requests if "/secrets" in path]
    assert requests == ["POST"]


async def test_the_secret_of_a_pod_that_waits_for_a_node_is_requested_once_by_each_orchestrator(
    make: Make, cluster: FakeCluster, monotonic: ManualMonotonic
) -> None:
    await make().start(new_pod())
    content = dict(cluster.objects["secrets"]["race-p0"])
    successor = make()
    for _ in range(3):
        await successor.list()
    assert cluster.objects["secrets"]["race-p0"] == content
    assert len([path for _, path, _, _ in cluster.requests if "/secrets" in path]) == 2
