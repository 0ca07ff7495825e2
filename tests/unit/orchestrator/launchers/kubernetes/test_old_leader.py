"""An orchestrator that was stopped until another replica led changes no object of the cluster when it continues."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from fake_cluster import NAMESPACE, POD_ENVIRONMENT, FakeCluster, ManualMonotonic, new_pod

from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher
from orchestrator.launchers.options import KubernetesOptions
from podrace.errors import Unavailable


class Lease:
    """A leadership that ends after some changes.

    Attributes:
        changes: Number of changes before it ends.
        meanwhile: Happens between the check before the last of them and the change itself.
    """

    def __init__(self) -> None:
        self.changes = 1_000_000
        self.meanwhile: Callable[[], None] = lambda: None

    def check(self) -> None:
        if not self.changes:
            raise Unavailable("another replica leads")
        self.changes -= 1
        if not self.changes:
            self.meanwhile()


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
def old(cluster: FakeCluster, monotonic: ManualMonotonic, lease: Lease) -> KubernetesLauncher:
    """The launcher of the replica whose lease expires."""
    return KubernetesLauncher(
        replace(POD_ENVIRONMENT, check_leads=lease.check),
        KubernetesOptions(unprotected_collectives=True),
        find=lambda namespace: (cluster, NAMESPACE),
        monotonic=monotonic,
    )


def changes(cluster: FakeCluster) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _, _ in cluster.requests if method != "GET"]


async def test_the_configmap_of_a_tournament_is_kept_if_another_leader_has_started_jobs_since_the_last_list(
    make: Callable[..., KubernetesLauncher],
    old: KubernetesLauncher,
    cluster: FakeCluster,
    monotonic: ManualMonotonic,
) -> None:
    """Kubernetes deletes the Jobs of a tournament with its ConfigMap."""
    await old.start(new_pod())
    cluster.jobs().clear()
    await old.list()
    await old.capacity()
    await old.list()
    monotonic.now += 301.0
    successor = make()
    await successor.start(new_pod("race-p1"))
    cluster.give_pod("race-p1")
    await old.capacity()
    assert cluster.objects["configmaps"]
    assert list(cluster.jobs()) == ["race-p1"]


async def test_a_configmap_whose_tournament_had_jobs_in_between_is_kept_for_the_whole_time_again(
    make: Callable[..., KubernetesLauncher],
    old: KubernetesLauncher,
    cluster: FakeCluster,
    monotonic: ManualMonotonic,
) -> None:
    await old.start(new_pod())
    cluster.jobs().clear()
    await old.list()
    await old.capacity()
    monotonic.now += 301.0
    await make().start(new_pod("race-p1"))
    await old.capacity()
    cluster.jobs().clear()
    for seconds, kept in ((10.0, True), (299.0, True), (2.0, False)):
        monotonic.now += seconds
        await old.list()
        await old.capacity()
        assert bool(cluster.objects["configmaps"]) is kept


async def _finished(cluster: FakeCluster) -> None:
    cluster.give_pod("race-p0", "Succeeded")
    cluster.end("race-p0", "Complete")


async def _role_lost(cluster: FakeCluster) -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    states = {"learner": {"running": {}}, "worker-0": ended, "evaluator": {"running": {}}}
    cluster.give_pod("race-p0", containerStatuses=[{"name": name, "state": each} for name, each in states.items()])


async def _terminating(cluster: FakeCluster) -> None:
    cluster.give_pod("race-p0")["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"


async def _leader_ended(cluster: FakeCluster) -> None:
    cluster.give_pod("race-p0", containerStatuses=[{"name": "learner", "state": {"terminated": {"exitCode": 1}}}])


async def _without_jobs(cluster: FakeCluster) -> None:
    cluster.jobs().clear()


@pytest.mark.parametrize("happens", [_finished, _role_lost, _terminating, _leader_ended, _without_jobs])
async def test_an_old_leader_changes_nothing_that_it_finds_in_its_cycles(
    happens: Callable[[FakeCluster], Awaitable[None]],
    make: Callable[..., KubernetesLauncher],
    old: KubernetesLauncher,
    cluster: FakeCluster,
    monotonic: ManualMonotonic,
    lease: Lease,
) -> None:
    await make().start(new_pod())
    lease.changes = 0
    await happens(cluster)
    cluster.requests.clear()
    for _ in range(3):
        for call in (old.list, old.capacity):
            with suppress(Unavailable):
                await call()
        monotonic.now += 301.0
    assert changes(cluster) == []


async def test_an_old_leader_starts_and_stops_no_pod(
    make: Callable[..., KubernetesLauncher], old: KubernetesLauncher, cluster: FakeCluster, lease: Lease
) -> None:
    await make().start(new_pod())
    cluster.give_pod("race-p0")
    lease.changes = 0
    cluster.requests.clear()
    with pytest.raises(Unavailable):
        await old.start(new_pod("race-p1"))
    for kill in (False, True):
        with pytest.raises(Unavailable):
            await old.stop("race-p0", kill=kill)
    assert changes(cluster) == []


async def test_a_leader_whose_lease_expires_while_it_deletes_stops_deleting(
    make: Callable[..., KubernetesLauncher], old: KubernetesLauncher, cluster: FakeCluster, lease: Lease
) -> None:
    for number in range(3):
        await make().start(new_pod(f"race-p{number}"))
        cluster.give_pod(f"race-p{number}", "Succeeded")
        cluster.end(f"race-p{number}", "Complete")
    lease.changes = 1
    with pytest.raises(Unavailable, match="another replica leads"):
        await old.list()
    assert len(cluster.jobs()) == 2


@pytest.mark.parametrize(("changes", "left"), [(1, 0), (1, 9), (2, 0)])
@pytest.mark.parametrize("kill", [False, True])
async def test_a_leader_that_is_stopped_within_a_stop_deletes_nothing_of_a_later_pod_of_that_id(
    make: Callable[..., KubernetesLauncher],
    old: KubernetesLauncher,
    cluster: FakeCluster,
    lease: Lease,
    kill: bool,
    changes: int,
    left: int,
) -> None:
    """Another replica leads and starts the pod again, between a check that succeeds and the request after it.

    With `left`, the checks after that one succeed too, as for a request that only the network delays.
    """
    await old.start(new_pod())
    earlier, later = cluster.give_pod("race-p0")["metadata"]["name"], ""

    def meanwhile() -> None:
        nonlocal later
        cluster.jobs().clear()
        asyncio.run(make().start(new_pod()))
        later = cluster.give_pod("race-p0")["metadata"]["name"]
        lease.changes = left

    lease.changes, lease.meanwhile = changes, meanwhile
    with suppress(Unavailable):
        await old.stop("race-p0", kill=kill)
    assert "deletionTimestamp" not in cluster.jobs()["race-p0"]["metadata"]
    assert "deletionTimestamp" not in cluster.objects["pods"][later]["metadata"]
    assert earlier != later


async def test_a_job_of_the_same_name_is_not_deleted_for_the_one_that_finished(
    make: Callable[..., KubernetesLauncher], old: KubernetesLauncher, cluster: FakeCluster, lease: Lease
) -> None:
    await old.start(new_pod())
    await _finished(cluster)

    def meanwhile() -> None:
        cluster.jobs().clear()
        asyncio.run(make().start(new_pod()))

    lease.changes, lease.meanwhile = 1, meanwhile
    await old.list()
    assert list(cluster.jobs()) == ["race-p0"]


async def test_the_jobs_of_a_configmap_that_a_leader_deletes_too_late_continue(
    make: Callable[..., KubernetesLauncher],
    old: KubernetesLauncher,
    cluster: FakeCluster,
    monotonic: ManualMonotonic,
    lease: Lease,
) -> None:
    await old.start(new_pod())
    cluster.jobs().clear()
    await old.list()
    await old.capacity()
    monotonic.now += 301.0
    await old.list()

    def meanwhile() -> None:
        asyncio.run(make().start(new_pod("race-p1")))
        cluster.give_pod("race-p1")

    lease.changes, lease.meanwhile = 1, meanwhile
    await old.capacity()
    assert not cluster.objects["configmaps"], "the request was sent"
    assert list(cluster.jobs()) == ["race-p1"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in cluster.objects["pods"].values())


async def test_a_pod_is_not_started_under_a_configmap_that_is_being_deleted(
    make: Callable[..., KubernetesLauncher], old: KubernetesLauncher, cluster: FakeCluster
) -> None:
    """Kubernetes would delete its Job as soon as the ConfigMap is gone."""
    await old.start(new_pod())
    (owner,) = cluster.objects["configmaps"].values()
    owner["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
    with pytest.raises(Unavailable, match="is being deleted"):
        await make().start(new_pod("race-p1"))
    assert list(cluster.jobs()) == ["race-p0"]
