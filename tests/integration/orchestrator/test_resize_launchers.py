"""What the launchers are asked to run while a pod is replaced by one of another size, and what happens if it fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker.errors
import pytest
from fake_cluster import failure
from resize_platforms import Cluster, Containers
from resize_world import PlayedPod, World

from orchestrator.launchers.docker import NANO
from orchestrator.pool.resizes import WARMING_SECONDS
from orchestrator.state.resize_records import ResizePhase

ROUND_SECONDS = 4.0


@pytest.fixture
def engine_world(
    open_mesh: Callable[..., Any], spec: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    return World(Containers(monkeypatch), open_mesh, spec, tmp_path)


@pytest.fixture
def cluster_world(open_mesh: Callable[..., Any], spec: Callable[..., Any], clock: Any, tmp_path: Path) -> World:
    return World(Cluster(clock), open_mesh, spec, tmp_path)


async def old_pod_continues(world: World) -> None:
    """Checks that the old pod trains the agent under the same lease epoch, and that nothing is under way."""
    holder = await world.settle()
    assert holder.pod_id == world.old
    assert {one.lease_epoch for one in world.publications if one.agent_id == world.agent_id} == {1}
    assert await world.phases() == [ResizePhase.ABANDONED]
    world.check_publications()


async def test_the_containers_of_both_pods_run_until_the_new_one_is_ready(engine_world: World) -> None:
    async with engine_world as world:
        assert isinstance(world.platform, Containers)
        await world.begin("grow")
        await world.reach("ready")
        old, new = (world.platform.containers_of(pod) for pod in (world.old, world.new))
        assert sorted(old) == ["learner"]
        assert sorted(new) == ["evaluator", "learner", "worker-0"]
        assert {arguments["nano_cpus"] for arguments in new.values()} == {2 * NANO}
        assert {arguments["mem_limit"] for arguments in new.values()} == {2 << 28}
        assert not {one["volumes"][0] for one in old.values()} & {one["volumes"][0] for one in new.values()}
        await world.reach("trained")
        await world.settle()
        assert world.platform.containers_of(world.old) == {}
        assert world.old not in "".join(world.platform.engine.volume_options), "its volume is removed"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("image podrace/agentpod:latest", docker.errors.ImageNotFound("No such image: podrace/agentpod:latest")),
        ("run", docker.errors.APIError("500 Server Error: no space left on device")),
    ],
)
async def test_if_the_engine_cannot_start_the_new_pod_the_old_one_continues(
    engine_world: World, call: str, error: Exception
) -> None:
    async with engine_world as world:
        assert isinstance(world.platform, Containers)
        engine = world.platform.engine
        engine.failures[call] = error
        await world.begin("grow")
        await world.mesh.cycle(1.0)
        engine.failures.clear()
        await old_pod_continues(world)
        assert world.platform.containers_of(world.new) == {}
        volumes = {
            labels["podrace.pod"] for name, labels in engine.volume_labels.items() if name in engine.volume_options
        }
        assert world.new not in volumes


async def test_the_new_job_has_its_own_cores_while_the_old_one_runs(cluster_world: World) -> None:
    async with cluster_world as world:
        assert isinstance(world.platform, Cluster)
        await world.begin("grow")
        await world.reach("ready")
        jobs = world.platform.cluster.jobs()
        assert {world.old, world.new} <= jobs.keys()
        containers = jobs[world.new]["spec"]["template"]["spec"]["containers"]
        assert [one["name"] for one in containers] == ["learner", "worker-0", "evaluator"]
        assert len(world.all_pods) == 4, "the challengers have stopped for it"
        await world.reach("trained")
        await world.settle()
        for _ in range(3):
            await world.round()
        assert world.old not in world.platform.cluster.jobs()
        assert len(world.playing) == 2, "a challenger gets the core that is left"


async def test_if_the_job_cannot_be_created_the_old_pod_continues(cluster_world: World) -> None:
    async with cluster_world as world:
        assert isinstance(world.platform, Cluster)
        world.platform.cluster.failures["POST", "jobs"] = failure(403, "exceeded quota: team", "Forbidden")
        await world.begin("grow")
        await world.mesh.cycle(1.0)
        world.platform.cluster.failures.clear()
        await old_pod_continues(world)
        messages = [event.message for event in await world.mesh.events(world.name)]
        assert any("exceeded quota" in message for message in messages)


async def test_if_no_node_accepts_the_new_pod_it_is_stopped_in_time_and_the_old_one_continues(
    cluster_world: World,
) -> None:
    async with cluster_world as world:
        assert isinstance(world.platform, Cluster)
        await world.begin("grow")
        world.platform.unschedulable.add(world.new)
        # It never makes a call.
        world.all_pods[world.new] = PlayedPod(world, world.new, acts=False)
        for _ in range(int(WARMING_SECONDS / ROUND_SECONDS) + 1):
            await world.round(seconds=ROUND_SECONDS)
        assert await world.phases() == [ResizePhase.ABANDONED]
        await world.platform.end(world.new, killed=False)
        await old_pod_continues(world)
        for _ in range(3):
            await world.round()
        assert len(world.playing) == 3, "the challengers' cores are used again"


async def test_on_a_full_cluster_a_challenger_stops_so_that_the_pod_can_shrink(cluster_world: World) -> None:
    async with cluster_world as world:
        await world.begin("shrink")
        await world.reach("trained")
        holder = await world.settle()
        for _ in range(5):
            await world.round()
        cores = {pod.pod_id: pod.reserved.cores for pod in await world.mesh.launcher.list()}
        assert cores[holder.pod_id] == 1.0
        assert sorted(cores.values()) == [1.0, 1.0, 1.0]
        world.check_publications()


async def test_on_several_nodes_pods_stop_where_the_new_pod_then_runs(
    open_mesh: Callable[..., Any], spec: Callable[..., Any], clock: Any, tmp_path: Path
) -> None:
    async with World(Cluster(clock, nodes=(2, 2, 2)), open_mesh, spec, tmp_path) as world:
        assert isinstance(world.platform, Cluster)
        before = world.platform.places()
        assert sorted(before.values()) == ["n1", "n1", "n2", "n2", "n3", "n3"]
        await world.begin("grow")
        await world.reach("trained")
        await world.settle()
        where = world.platform.places()[world.new]
        stopped = {pod for pod in before if pod not in world.platform.places()} - {world.old}
        assert stopped == {pod for pod, node in before.items() if node == where}
        assert await world.phases() == [ResizePhase.DONE]
