"""The Secret of a pod: its leader alone gets the token, its hosts share a key, and it is deleted with the Job."""

from dataclasses import replace
from typing import Any

from fake_cluster import GIB, POD_ENVIRONMENT, FakeCluster, new_pod

from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.kubernetes.pod_secrets import LAUNCH_SECONDS, secret_environment, secret_of
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.tokens import AUDIENCE, PodTokens

NOW = 1_800_000_000.0
PEM = make_pem()
KEY = MeshKey(PEM, lambda: NOW)
WITH_KEY = replace(POD_ENVIRONMENT, pod_tokens=PodTokens(KEY, lambda: NOW))
TWO_HOSTS: dict[str, Any] = {"hosts": 2, "learners": 2, "cores": 4.0, "memory_bytes": 6 * GIB}
JOB = {"metadata": {"name": "race-p0", "uid": "1234", "labels": {"podrace/pod": "race-p0", "team": "races"}}}


def test_a_pod_of_one_host_needs_no_secret_if_the_mesh_has_no_key() -> None:
    assert secret_of(new_pod(), POD_ENVIRONMENT, JOB) is None
    assert secret_environment(new_pod(), POD_ENVIRONMENT, "race-p0", "learner") == []


def test_the_secret_has_a_token_that_is_bound_to_the_pod_and_to_its_tournament() -> None:
    secret = secret_of(new_pod(), WITH_KEY, JOB)
    assert secret is not None
    assert secret["stringData"].keys() == {"token"}
    claims = KEY.public.verify(secret["stringData"]["token"], audience=AUDIENCE)
    assert (claims["sub"], claims["tournament"]) == ("pod/race-p0", "race")
    assert claims["exp"] == NOW + LAUNCH_SECONDS


def test_a_pod_that_waited_for_weeks_in_a_queue_or_was_evicted_after_weeks_can_still_make_its_first_call() -> None:
    secret = secret_of(new_pod(), WITH_KEY, JOB)
    assert secret is not None
    weeks_later = MeshKey(PEM, lambda: NOW + 4 * 7 * 86_400)
    weeks_later.public.verify(secret["stringData"]["token"], audience=AUDIENCE)


def test_the_secret_is_deleted_with_its_job_and_has_only_the_labels_of_the_mesh() -> None:
    secret = secret_of(new_pod(), WITH_KEY, JOB)
    assert secret is not None
    assert secret["metadata"] == {
        "name": "race-p0",
        "labels": {"podrace/pod": "race-p0"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "race-p0", "uid": "1234"}],
    }


def test_only_the_leader_gets_the_token_and_every_host_gets_the_key() -> None:
    pod = new_pod(**TWO_HOSTS)
    names = {
        role: [each["name"] for each in secret_environment(pod, WITH_KEY, "race-p0", role)]
        for role in ("learner", "learner-1", "worker-0", "evaluator")
    }
    assert names.pop("learner") == ["PODRACE_AGENTPOD__TOKEN", "PODRACE_AGENTPOD__KEY"]
    assert set(map(tuple, names.values())) == {("PODRACE_AGENTPOD__KEY",)}
    assert secret_environment(pod, WITH_KEY, "race-p0", "learner")[0]["valueFrom"] == {
        "secretKeyRef": {"name": "race-p0", "key": "token"}
    }


def test_the_keys_of_two_pods_differ() -> None:
    secrets = [secret_of(new_pod(**TWO_HOSTS), POD_ENVIRONMENT, JOB) for _ in range(2)]
    keys = {secret["stringData"]["key"] for secret in secrets if secret}
    assert len(keys) == 2
    assert all(len(key) >= 43 for key in keys), "32 bytes"


async def test_neither_token_nor_key_is_in_the_description_of_the_job(
    launcher: KubernetesLauncher, cluster: FakeCluster
) -> None:
    await launcher.start(new_pod(**TWO_HOSTS))
    (secret,) = cluster.objects["secrets"].values()
    job = str(cluster.jobs()["race-p0"])
    assert all(value not in job for value in secret["stringData"].values())
    assert secret["metadata"]["ownerReferences"][0]["uid"] == cluster.jobs()["race-p0"]["metadata"]["uid"]
