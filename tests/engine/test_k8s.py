"""Tests the mesh on a real cluster: the overlay `local` trains, survives the loss of pods, and leaves nothing behind.

Needs KUBECONFIG with administrator rights, a cluster whose service addresses can be reached from here, and the Docker
Engine from which its nodes run images. Run by `make test-k8s`; prints a JSON line for each time it measures.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import container_spy
import pytest
from k8s_mesh import ADDRESSES, AGENT_PODS, COMPLETED, KUBECTL, OWN_IMAGE, SMALL, Mesh, grown, handed_back, until

from agentpod.qualification.plane_trials import launched
from agentpod.qualification.plane_trials.cases import CASES, PlaneCase
from agentpod.qualification.plane_trials.reach import KILL
from podrace.qualification.findings import Grade
from podrace.tournament.v1 import tournament_pb2

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1800),
    # The kubeconfig of a test cluster may have no certificate authority.
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
]
ADDRESS = f"{ADDRESSES['orchestrator']}:50051"
Record = Callable[[str, float], None]
STOP_ALL = """
import os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if path.read_bytes().split(b"\\0")[:3] == [b"python", b"-m", b"agentpod"]:
        os.kill(int(path.parent.name), 19)
"""


@pytest.fixture
def record(capfd: pytest.CaptureFixture[str]) -> Record:
    """Returns a function that prints a measurement in the format of the benchmarks."""

    def print_line(metric: str, seconds: float) -> None:
        value = {"metric": metric, "value": round(seconds, 1), "unit": "s"}
        with capfd.disabled():
            print(json.dumps({"benchmark": "elasticity", "case": "kubernetes", **value}), flush=True)

    return print_line


ENDLESS = {
    "objective__target_return": 501.0,
    "objective__wall_clock_duration": "10m",
    "assignment__environment_steps": 10**9,
    "evaluation__every_environment_steps": 10**6,
    # An agent keeps its pod to the end; the default strategy divides its training into assignments.
    "evolution__strategy": "tournament",
}


async def test_two_pods_train_cartpole_and_everything_is_removed(mesh: Mesh, record: Record) -> None:
    """In an image that the specification names and the operator allows."""
    subprocess.run(["docker", "tag", "podrace-test/agentpod:local", OWN_IMAGE], check=True, capture_output=True)
    tournament = await mesh.create(pool__minimum_pods=2, pool__maximum_pods=2, pod__image=OWN_IMAGE, **SMALL)
    record("create_tournament_to_first_environment_step", await until(lambda: mesh.steps(tournament), "steps"))
    await until(lambda: len(mesh.running()) == 2, "two pods")
    images = mesh.kubectl(
        "get", "pods", "--selector", AGENT_PODS, "-o", "jsonpath={.items[*].spec.containers[*].image}"
    )
    assert set(images.split()) == {OWN_IMAGE}

    async def over() -> bool:
        return bool((await mesh.get(tournament)).state == COMPLETED)

    await until(over, "the tournament to end", seconds=300.0)
    ended = await mesh.get(tournament)
    assert ended.best_score >= 475.0, ended.reason
    await until(lambda: not mesh.names("jobs", "podrace/scope=podrace"), "the Jobs to be deleted")
    await until(lambda: not mesh.names("pods", AGENT_PODS), "the pods to be deleted")
    listed = json.loads(
        mesh.kubectl("get", "events", "--field-selector", "involvedObject.kind=ConfigMap", "-o", "json")
    )
    reasons = {event["reason"] for event in listed["items"]}
    assert {"PodStarted", "PodGone", "TournamentCompleted"} <= reasons
    await until(lambda: not mesh.names("configmaps", "podrace/scope=podrace"), "the ConfigMap to be deleted")


async def test_killed_pods_are_replaced_and_a_restarted_orchestrator_adopts_its_pods(mesh: Mesh) -> None:
    tournament = await mesh.create(pool__minimum_pods=2, pool__maximum_pods=2, **SMALL, **ENDLESS)
    await until(lambda: len(mesh.running()) == 2, "two pods")
    await until(lambda: mesh.steps(tournament), "steps")
    before = mesh.running()
    first = mesh.uid("podrace-orchestrator-0")
    mesh.kubectl("delete", "pod", "podrace-orchestrator-0", "--grace-period=0", "--force", "--wait=false")
    await until(lambda: mesh.uid("podrace-orchestrator-0") not in ("", first), "another orchestrator")
    # It knows the steps that were written to its database; the number grows again from there.
    await until(lambda: mesh.steps(tournament), "it to answer")
    seen = await mesh.steps(tournament)
    await until(lambda: grown(mesh, tournament, seen), "training to continue")
    assert sorted(mesh.running()) == sorted(before), "its pods outlived it"
    victim = mesh.running()[0]
    mesh.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    await until(lambda: len(mesh.running()) == 2 and victim not in mesh.running(), "another pod")
    assert not await mesh.events(tournament, "tournament_failed")


async def test_the_pod_of_a_drained_node_returns_its_agent_and_the_next_one_waits_for_capacity(
    mesh: Mesh, record: Record
) -> None:
    """Eviction, cordon, and the reason in the events; afterwards the node accepts pods again."""
    tournament = await mesh.create(
        pool__minimum_pods=1,
        pool__maximum_pods=1,
        pod__layout="separate",
        pod__cores=1,
        pod__memory_bytes=1 << 30,
        **ENDLESS,
    )
    await until(lambda: mesh.steps(tournament), "steps")
    node = json.loads(mesh.kubectl("get", "pod", mesh.running()[0], "-o", "json"))["spec"]["nodeName"]
    try:
        mesh.kubectl("cordon", node)
        selector = f"--pod-selector={AGENT_PODS}"
        mesh.kubectl(
            "drain", node, selector, "--delete-emptydir-data", "--force", "--timeout=90s", "--ignore-daemonsets"
        )
        assert not mesh.running()

        async def short() -> bool:
            # Before that, the reason may be a back-off: the last pod exited before it was useful. Whether a pod waits
            # for the node or is not started depends on when the launcher notices that the node is cordoned.
            reasons = await mesh.events(tournament, "pool_short")
            return any(words in reason for reason in reasons for words in ("no node accepts it", "cores", "memory"))

        await until(short, "the reason in the events")
        published = await mesh.steps(tournament)
    finally:
        mesh.kubectl("uncordon", node)
    record(
        "capacity_to_a_pod_training", await until(lambda: grown(mesh, tournament, published), "training to continue")
    )
    assert await handed_back(mesh, tournament), await mesh.events(tournament, "agent_assigned")


async def test_the_pod_of_the_incumbent_grows_into_another_job(mesh: Mesh, record: Record) -> None:
    tournament = await mesh.create(
        pool__minimum_pods=3,
        pool__maximum_pods=3,
        pod__cores=0.4,
        pod__maximum_cores=0.8,
        # Two thirds of the cores, so that the test does not depend on what is learned.
        pod__improving_share=0.7,
        pod__stalled_share=0.7,
        pod__memory_bytes=800_000_000,
        # Without a founder's share, all pods begin with one size.
        evolution__founder_share=0.0,
        **{**ENDLESS, "evolution__strategy": "incumbent", "evaluation__every_environment_steps": 50_000},
    )
    begun = await until(lambda: mesh.events(tournament, "pod_resize_begun"), "a larger pod", seconds=300.0)
    record("create_tournament_to_resize_begun", begun)
    # A change is abandoned, and begun again after twice as many scores, if the larger pod is not ready in time.
    taken_over = await until(lambda: mesh.events(tournament, "pod_resized"), "the larger pod", seconds=500.0)
    record("larger_pod_takes_over", taken_over)

    def cores() -> list[str]:
        pods = json.loads(mesh.kubectl("get", "pods", "-l", AGENT_PODS, "-o", "json"))["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sorted(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in living)

    await until(lambda: cores() == ["400m", "800m"], "the cores to be those of the two sizes")
    seen = await mesh.steps(tournament)
    await until(lambda: grown(mesh, tournament, seen), "training to continue")
    for kind in ("pod_died", "pod_killed"):
        assert not await mesh.events(tournament, kind)


async def test_a_pod_that_lost_a_role_publishes_and_is_replaced(mesh: Mesh) -> None:
    tournament = await mesh.create(
        pool__minimum_pods=1,
        pool__maximum_pods=1,
        pod__layout="separate",
        pod__cores=1,
        pod__memory_bytes=1 << 30,
        **ENDLESS,
    )
    await until(lambda: mesh.steps(tournament), "steps")
    (broken,) = mesh.running()
    mesh.kubectl("exec", broken, "-c", "worker-0", "--", "python", "-c", KILL, "worker-0", check=False)
    await until(lambda: broken not in mesh.running() and mesh.running(), "another pod")
    (death,) = await mesh.events(tournament, "pod_died")
    assert "worker-0 exited" in death, death
    await until(lambda: handed_back(mesh, tournament), "its agent to be assigned again")


async def test_a_silent_pod_is_replaced(mesh: Mesh) -> None:
    """Its processes are stopped, so its containers run for Kubernetes: the orchestrator decides by the lease."""
    tournament = await mesh.create(
        pool__minimum_pods=1,
        pool__maximum_pods=1,
        pod__layout="separate",
        pod__cores=1,
        pod__memory_bytes=1 << 30,
        **ENDLESS,
    )
    await until(lambda: mesh.steps(tournament), "steps")
    (silent,) = mesh.running()
    mesh.kubectl("exec", silent, "-c", "worker-0", "--", "python", "-c", STOP_ALL)
    await until(lambda: silent not in mesh.running() and mesh.running(), "another pod")
    assert await mesh.events(tournament, "pod_killed")
    seen = await mesh.steps(tournament)
    await until(lambda: grown(mesh, tournament, seen), "training to continue")


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("memory", "shared")], ids=lambda case: case.name
)
async def test_roles_of_a_pod_are_examined_and_killed_through_the_launcher(mesh: Mesh, case: PlaneCase) -> None:
    """What `podrace qualify --orchestrator` does, with processors in place of GPUs."""
    found = await launched.measure(case, 0, ADDRESS)
    assert found.launcher == "kubernetes", found
    assert {finding.grade for finding in launched.judge(found)} == {Grade.PASS}, found


async def test_the_agent_of_an_evicted_pod_continues_in_another(mesh: Mesh, record: Record) -> None:
    """On a cluster of one node, the other pod runs on the same node."""
    tournament = await mesh.create(pool__minimum_pods=1, pool__maximum_pods=1, **SMALL, **ENDLESS)
    await until(lambda: mesh.steps(tournament), "steps")
    (victim,) = mesh.running()
    begin = time.monotonic()
    mesh.kubectl("delete", "pod", victim)
    await until(lambda: victim not in mesh.running() and mesh.running(), "another pod")
    # The evicted pod trains until it is asked to stop, so more steps alone do not show that another one continues.
    await until(lambda: handed_back(mesh, tournament), "its agent to be assigned again")
    seen = await mesh.steps(tournament)
    await until(lambda: grown(mesh, tournament, seen), "training to continue")
    record("pod_evicted_to_its_agent_training_again", time.monotonic() - begin)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pod__gpus": 1}, "a pod needs 1 GPUs, 0 are free"),
        ({"pod__cores": 1000}, "a pod needs 1000 cores"),
    ],
)
async def test_missing_resources_are_reported_and_waited_for(mesh: Mesh, changes: dict[str, Any], reason: str) -> None:
    tournament = await mesh.create(pool__minimum_pods=1, **{**SMALL, **changes}, **ENDLESS)

    async def short() -> bool:
        return any(reason in message for message in await mesh.events(tournament, "pool_short"))

    await until(short, f"{reason!r} in the events")
    assert (await mesh.get(tournament)).state == tournament_pb2.TOURNAMENT_STATE_RUNNING


@pytest.mark.parametrize("layout", ["fused", "separate"])
async def test_user_code_finds_no_secret_of_its_pod_and_no_way_to_services_and_store(mesh: Mesh, layout: str) -> None:
    (mesh.reports / "found").unlink(missing_ok=True)
    sections = {
        f"{section}__{key}": value for section, table in container_spy.SECTIONS.items() for key, value in table.items()
    }
    pod = {"pod__layout": layout, "pod__cores": 1.0, "pod__memory_bytes": 2 << 30}
    # Twice the steps of an assignment: the end of the tournament does not interrupt the evaluation of the first agent.
    objective = {"objective__environment_steps": 512, "pool__minimum_pods": 1, "pool__maximum_pods": 1}
    tournament = await mesh.create(**sections, **pod, **objective)

    async def ended() -> bool:
        return (await mesh.get(tournament)).state in (COMPLETED, tournament_pb2.TOURNAMENT_STATE_FAILED)

    await until(ended, "the end", seconds=300.0)
    ended_tournament = await mesh.get(tournament)
    assert ended_tournament.state == COMPLETED, ended_tournament.reason
    container_spy.check([json.loads(line) for line in (mesh.reports / "found").read_text().splitlines()])


async def test_a_missing_image_is_reported_and_waited_for(mesh: Mesh) -> None:
    def take(image: str) -> None:
        containers = [{"name": "agentpod", "image": image}]
        patch = {"template": {"spec": {"containers": containers}}}
        mesh.kubectl("patch", "podtemplate", "podrace-agentpod", "--type=strategic", "-p", json.dumps(patch))

    take("podrace-test/missing-image:local")
    try:
        tournament = await mesh.create(pool__minimum_pods=1, **SMALL, **ENDLESS)

        async def short() -> bool:
            return bool(await mesh.events(tournament, "pool_short"))

        await until(short, "the reason in the events")
        (reason, *_) = await mesh.events(tournament, "pool_short")
        assert "image 'podrace-test/missing-image:local' is not available (ErrImageNeverPull)" in reason
    finally:
        take("podrace-test/agentpod:local")


async def test_missing_permissions_are_reported_and_waited_for(mesh: Mesh) -> None:
    role = mesh.kubectl("get", "role", "podrace-orchestrator", "-o", "json")
    mesh.kubectl("patch", "role", "podrace-orchestrator", "--type=merge", "-p", '{"rules": []}')
    try:
        tournament = await mesh.create(pool__minimum_pods=1, **SMALL, **ENDLESS)

        async def short() -> bool:
            return any("denies permission" in message for message in await mesh.events(tournament, "pool_short"))

        await until(short, "the reason in the events")
    finally:
        patch = json.dumps({"rules": json.loads(role)["rules"]})
        mesh.kubectl("patch", "role", "podrace-orchestrator", "--type=merge", "-p", patch)
    await until(lambda: mesh.steps(tournament), "steps after the permissions are restored")


async def test_an_exhausted_quota_is_reported_and_waited_for(mesh: Mesh) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": {"pods": "3"}},
    }  # fmt: skip
    subprocess.run([KUBECTL, "-n", mesh.namespace, "apply", "-f", "-"], input=json.dumps(quota), text=True, check=True)
    try:
        await asyncio.sleep(3.0)
        tournament = await mesh.create(pool__minimum_pods=1, **SMALL, **ENDLESS)

        async def short() -> bool:
            return bool(await mesh.events(tournament, "pool_short"))

        await until(short, "the reason in the events")
    finally:
        mesh.kubectl("delete", "resourcequota", "tight")
    await until(lambda: mesh.steps(tournament), "steps after the quota is deleted")


@pytest.mark.parametrize(
    ("account", "verb", "what"),
    [
        ("orchestrator", "get", "secrets"),
        ("orchestrator", "create", "pods"),
        ("orchestrator", "create", "pods/exec"),
        ("orchestrator", "patch", "podtemplates"),
        ("orchestrator", "get", "podtemplates/another"),
        ("orchestrator", "create", "rolebindings"),
        ("orchestrator", "impersonate", "serviceaccounts"),
        ("orchestrator", "patch", "nodes"),
        ("agentpod", "list", "pods"),
        ("agentpod", "get", "secrets"),
        ("agentpod", "create", "jobs"),
        ("leaderboard", "list", "pods"),
        ("leaderboard", "get", "configmaps"),
    ],
)
def test_service_accounts_lack_permissions_they_do_not_need(mesh: Mesh, account: str, verb: str, what: str) -> None:
    who = f"--as=system:serviceaccount:{mesh.namespace}:podrace-{account}"
    assert mesh.kubectl("auth", "can-i", verb, what, who, check=False).strip() == "no"


def test_the_orchestrator_can_start_jobs_only_in_its_own_namespace(mesh: Mesh) -> None:
    who = f"--as=system:serviceaccount:{mesh.namespace}:podrace-orchestrator"
    assert mesh.kubectl("auth", "can-i", "create", "jobs", who, check=False).strip() == "yes"
    assert mesh.kubectl("auth", "can-i", "create", "jobs", who, "-n", "kube-system", check=False).strip() == "no"
