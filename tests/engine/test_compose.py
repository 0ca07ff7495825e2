"""The mesh as containers of a real Docker Engine: it trains through S3, survives kills, and leaves nothing behind.

Needs `docker compose` and an engine (DOCKER_HOST); the images are built first. Run by `make test-compose`.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]
FILES = ("deploy/compose/compose.yaml", "tests/engine/compose.test.yaml")
PATIENCE_SECONDS = 60.0


@dataclass
class Stack:
    """A project of compose with its own name, network and volumes."""

    project: str
    environment: dict[str, str]

    def compose(self, *arguments: str) -> str:
        files = [argument for file in FILES for argument in ("--file", str(REPOSITORY / file))]
        return self.run("compose", "--project-name", self.project, *files, *arguments)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(["docker", *arguments], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        files = [argument for file in FILES for argument in ("--file", str(REPOSITORY / file))]
        command = ["docker", "compose", "--project-name", self.project, *files, "run", "--rm", "command", "train"]
        told = ["/examples/cartpole.toml", "--orchestrator", "orchestrator:50051", "--json", *arguments]
        return subprocess.Popen([*command, *told], env=self.environment, stdout=subprocess.PIPE, text=True)

    def containers(self, **labels: str) -> list[str]:
        wanted = {"scope": self.project, **labels}
        filters = [part for key, value in wanted.items() for part in ("--filter", f"label=podrace.{key}={value}")]
        return self.run("ps", "--quiet", *filters).split()

    def volumes(self) -> list[str]:
        return self.run("volume", "ls", "--quiet", "--filter", f"label=podrace.scope={self.project}").split()

    def pid(self, container: str) -> int:
        return int(self.run("inspect", "--format", "{{.State.Pid}}", container))


def until(condition: object, what: str) -> None:
    assert callable(condition)
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"waited {PATIENCE_SECONDS:g} s for {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        pytest.skip("no Docker Engine answers: set DOCKER_HOST, or start one")
    secrets = tmp_path_factory.mktemp("secrets")
    for name in ("access", "secret"):
        (secrets / name).write_text(f"test-{name}-key")
        (secrets / name).chmod(0o644)
    socket = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
    project = f"podrace-test-{os.getpid()}"
    environment = {
        **os.environ,
        # Of this project alone, so that what others have built is not touched.
        "PODRACE_REGISTRY": "podrace-test",
        "PODRACE_STORE_IMAGE": "podrace-test/store",
        "PODRACE_STORE_COMMAND": "none",
        "PODRACE_STORE_ACCESS_KEY_PATH": str(secrets / "access"),
        "PODRACE_STORE_SECRET_KEY_PATH": str(secrets / "secret"),
        "PODRACE_DOCKER_SOCKET": str(socket),
        "PODRACE_DOCKER_GROUP": str(socket.stat().st_gid),
        "COMPOSE_PROJECT_NAME": project,
    }
    made = Stack(project, environment)
    for services in (("leaderboard", "orchestrator", "store"), ("agentpod",)):
        made.compose("build", *services)
    try:
        made.compose("up", "--detach", "--wait", "--wait-timeout", "120", "orchestrator")
        yield made
    finally:
        made.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")


def result_of(training: "subprocess.Popen[str]") -> dict[str, object]:
    output, _ = training.communicate(timeout=300)
    assert training.returncode == 0, output
    result: dict[str, object] = json.loads(output)
    return result


def test_two_pods_train_cartpole_through_the_store(stack: Stack) -> None:
    result = result_of(stack.start())
    assert result["state"] == "COMPLETED"
    assert float(str(result["best_score"])) >= 475.0
    until(lambda: not stack.containers() and not stack.volumes(), "the pods to be removed")


def test_a_killed_worker_comes_back_and_a_killed_head_is_replaced(stack: Stack) -> None:
    layout = ("pod.layout=separate", "pod.cores=2", "pool.minimum_pods=1", "pool.maximum_pods=1")
    endless = ("objective.target_return=501", "objective.wall_clock_duration=40s")
    training = stack.start(*(argument for key in (*layout, *endless) for argument in ("--set", key)))
    until(lambda: len(stack.containers()) == 3, "a container a role")
    (worker,) = stack.containers(role="worker-0")
    before = stack.pid(worker)
    os.kill(before, 9)
    until(lambda: stack.pid(worker) not in (0, before), "the worker to be started again")
    (head,) = stack.containers(role="learner")
    stack.run("kill", "--signal", "KILL", head)
    until(lambda: stack.containers(role="learner") not in ([], [head]), "another head")
    assert not stack.run("ps", "--all", "--quiet", "--filter", f"id={head}").strip(), "the dead head was not removed"
    result = result_of(training)
    assert result["state"] == "COMPLETED"
    assert float(str(result["best_score"])) > 0.0
    until(lambda: not stack.containers() and not stack.volumes(), "the pods to be removed")
