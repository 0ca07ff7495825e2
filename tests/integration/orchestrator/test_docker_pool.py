"""What becomes of a tournament whose pods the Docker Engine refuses to start, and where the reason is told."""

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


async def look_until_it_ends(mesh: Any, name: str) -> Any:
    for _ in range(50):
        await mesh.look(5.0)
        found = await mesh.get(name)
        if found.state != RUNNING:
            return found
    raise AssertionError("it goes on")


@pytest.mark.parametrize(
    ("asked", "refusal", "said"),
    [
        (
            IMAGE,
            NO_IMAGE,
            "image 'podrace/agentpod:latest' is not on the engine: build or pull it, or set docker.image",
        ),
        (EVERY_START, NO_NETWORK, "the Docker Engine refuses: network elsewhere not found"),
    ],
)
async def test_pods_that_can_never_be_started_end_the_tournament_with_the_engines_reason(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine, asked: str, refusal: Exception, said: str
) -> None:
    engine.failures[asked] = refusal
    async with open_mesh(launcher=launcher) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.look()
        assert any(said in event.message for event in await mesh.events(name))
        found = await look_until_it_ends(mesh, name)
    assert found.state == FAILED
    assert said in found.reason
    assert not engine.volume_options, "something of a pod that never was is left"


async def test_an_image_that_comes_in_time_saves_the_tournament(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine
) -> None:
    engine.failures[IMAGE] = NO_IMAGE
    async with open_mesh(launcher=launcher) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        await mesh.look()
        engine.failures.clear()
        for _ in range(3):
            await mesh.look(5.0)
        assert (await mesh.get(name)).state == RUNNING
        assert len(await mesh.pods(name)) == 1


async def test_without_the_right_to_the_socket_a_tournament_waits_and_says_why(
    open_mesh: Any, spec: Any, launcher: DockerLauncher, engine: Engine
) -> None:
    engine.failures["list"] = NO_SOCKET
    async with open_mesh(launcher=launcher) as mesh:
        name = await mesh.create(spec(maximum_pods=1))
        for _ in range(20):
            await mesh.look(5.0)
        (short,) = [event.message for event in await mesh.events(name) if event.kind == "pool_short"]
        assert "Permission denied" in short
        assert short.endswith("run as a member of the socket's group (compose: PODRACE_DOCKER_GROUP)")
        assert (await mesh.get(name)).state == RUNNING
        del engine.failures["list"]
        for _ in range(3):
            await mesh.look(5.0)
        assert len(await mesh.pods(name)) == 1
