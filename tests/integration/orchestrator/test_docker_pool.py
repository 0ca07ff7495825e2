"""Tests tournaments whose pods the Docker Engine does not start, and where the reason is reported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
from fake_docker import Engine

from orchestrator.launchers.base import PodEnvironment
from orchestrator.launchers.docker import DockerLauncher
from orchestrator.launchers.options import DockerOptions
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1 import tournament_pb2

RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
FAILED = tournament_pb2.TOURNAMENT_STATE_FAILED
IMAGE = "image podrace/agentpod:latest"
EVERY_START = "run"
NO_IMAGE = docker.errors.ImageNotFound("No such image: podrace/agentpod:latest")
NO_NETWORK = docker.errors.NotFound("network elsewhere not found")
NO_SOCKET = docker.errors.DockerException(
    "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))"
)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def launcher(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerLauncher:
    pod_environment = PodEnvironment(
        orchestrator="orchestrator:50051",
        leaderboard="leaderboard:50052",
        store="minio+http://store:9000/podrace",
        runtime_folder=tmp_path,
        log_folder=tmp_path,
        lifeline="",
        orphan_seconds=60.0,
        telemetry=TelemetryConfig(),
    )
    monkeypatch.setattr(docker, "from_env", lambda **_: engine)
    return DockerLauncher(pod_environment, DockerOptions(network="elsewhere"), environ={})


async def cycle_until_ended(mesh: Any, name: str) -> Any:
    for _ in range(50):
        await mesh.cycle(5.0)
        found = await mesh.get(name)
        if found.state != RUNNING:
            return found
    raise AssertionError("the tournament is still running")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            IMAGE,
            NO_IMAGE,
            "image 'podrace/agentpod:latest' does not exist on the engine: build or pull it, or set docker.image",
        ),
        (EVERY_START, NO_NETWORK, "the Docker Engine reports an error: network elsewhere not found"),
    ],
)
async def test_pods_that_the_engine_cannot_start_fail_the_tournament_with_its_error(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine, call: str, error: Exception, message: str
) -> None:
    engine.failures[call] = error
    async with open_mesh(launcher=launcher) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.cycle()
        assert any(message in event.message for event in await mesh.events(name))
        found = await cycle_until_ended(mesh, name)
    assert found.state == FAILED
    assert message in found.reason
    assert not engine.volume_options, "a volume of a pod that was not started is left"


async def test_a_missing_image_that_the_specification_names_fails_its_tournament_alone(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine
) -> None:
    launcher._options = replace(launcher._options, images=("team/*",))
    engine.failures["image team/robots:2"] = docker.errors.ImageNotFound("No such image: team/robots:2")
    message = "pod.image = 'team/robots:2': does not exist on the engine, and is never pulled: build or pull it there"
    async with open_mesh(launcher=launcher) as mesh:
        other = await mesh.create(spec(maximum_pods=1))
        name = await mesh.create(spec(maximum_pods=1, pod=tournament_pb2.PodSpec(image="team/robots:2")))
        found = await cycle_until_ended(mesh, name)
        assert (await mesh.get(other)).state == RUNNING
    assert found.state == FAILED
    assert message in found.reason
    assert {each.arguments["image"] for each in engine.running.values()} == {"podrace/agentpod:latest"}


async def test_an_image_that_is_added_in_time_saves_the_tournament(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine
) -> None:
    engine.failures[IMAGE] = NO_IMAGE
    async with open_mesh(launcher=launcher) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.cycle()
        engine.failures.clear()
        for _ in range(3):
            await mesh.cycle(5.0)
        assert (await mesh.get(name)).state == RUNNING
        assert len(await mesh.pods(name)) == 1


async def test_without_permission_for_the_socket_a_tournament_waits_and_reports_why(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine
) -> None:
    engine.failures["list"] = NO_SOCKET
    async with open_mesh(launcher=launcher) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        for _ in range(20):
            await mesh.cycle(5.0)
        (short,) = [event.message for event in await mesh.events(name) if event.kind == "pool_short"]
        assert "Permission denied" in short
        assert short.endswith("run as a member of the socket's group (compose: PODRACE_DOCKER_GROUP)")
        assert (await mesh.get(name)).state == RUNNING
        del engine.failures["list"]
        for _ in range(3):
            await mesh.cycle(5.0)
        assert len(await mesh.pods(name)) == 1
