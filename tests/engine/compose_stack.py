"""Controls a compose project for tests; waits for events of the engine or the orchestrator instead of polling."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import grpc
from served_policy import ServedPolicy

from podrace.config import read_toml
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, PoolSpec, Tournament

REPOSITORY = Path(__file__).parents[2]
FILES = ("deploy/compose/compose.yaml", "tests/engine/compose.test.yaml")
WAIT_SECONDS = 60.0
CALL_SECONDS = 10.0
ATTEMPT_SECONDS = 5.0
"""A service that was killed is published at another port after its restart, so a wait at the old one must end."""
Found = TypeVar("Found")
RESTARTING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclass
class Seen:
    """The last state of a tournament that the orchestrator reported, and all of its events."""

    tournament: Tournament
    pods: list[pb.Pod]
    events: list[pb.Event]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def training(self) -> set[str]:
        """Pods that have taken steps and are not being drained."""
        draining = pb.POD_ACTIVITY_DRAINING
        return {pod.pod_id for pod in self.pods if pod.progress.environment_steps and pod.activity != draining}


@dataclass
class Stack:
    """A compose project."""

    project: str
    environment: dict[str, str]
    profile: str = "docker"
    orchestrator: str = "orchestrator"
    """The service whose address is used for calls."""
    reports: Path = Path()
    """Folder that the containers of pods can write to."""
    files: tuple[str, ...] = FILES
    _requests: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    # --- the engine -------------------------------------------------------------------------------------------

    def compose(self, *arguments: str, stdin: str | None = None) -> str:
        files = [argument for file in self.files for argument in ("--file", str(REPOSITORY / file))]
        return self.run(
            "compose", "--project-name", self.project, "--profile", self.profile, *files, *arguments, stdin=stdin
        )

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        command = ["docker", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, input=stdin)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done.stdout

    def containers(self, **labels: str) -> list[str]:
        """Returns the ids of running containers of pods, selected by the launcher's labels."""
        wanted = {"scope": self.project, **labels}
        filters = [part for key, value in wanted.items() for part in ("--filter", f"label=podrace.{key}={value}")]
        return self.run("ps", "--quiet", *filters).split()

    def volumes(self) -> list[str]:
        return self.run("volume", "ls", "--quiet", "--filter", f"label=podrace.scope={self.project}").split()

    def left(self) -> list[str]:
        """Returns the ids of everything of this project that the engine still has."""
        label = f"label=com.docker.compose.project={self.project}"
        found = [*self.volumes(), *self.run("ps", "--all", "--quiet", "--filter", label).split()]
        scope = f"label=podrace.scope={self.project}"
        found += self.run("ps", "--all", "--quiet", "--filter", scope).split()
        found += self.run("network", "ls", "--quiet", "--filter", label).split()
        return found + self.run("volume", "ls", "--quiet", "--filter", label).split()

    def remove_pods(self) -> None:
        """Removes containers and volumes of pods whose tournament has not ended."""
        scope = f"label=podrace.scope={self.project}"
        for container in self.run("ps", "--all", "--quiet", "--filter", scope).split():
            self.run("rm", "--force", "--volumes", container)
        for volume in self.volumes():
            self.run("volume", "rm", "--force", volume)

    def down(self) -> None:
        """Removes containers, networks and volumes of all services."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "20")

    def service(self, name: str) -> str:
        return self.compose("ps", "--quiet", name).strip()

    def pid(self, container: str) -> int:
        return int(self.run("inspect", "--format", "{{.State.Pid}}", container))

    def kill(self, container: str) -> None:
        """Kills a container as if it had crashed: one killed through the engine would not be restarted."""
        os.kill(self.pid(container), signal.SIGKILL)

    def until(self, condition: Callable[[], Found], what: str) -> Found:
        """Waits for a condition of the engine, which is evaluated again after each of the engine's events.

        Returns:
            The first result of the condition that is true.
        """
        give_up = time.monotonic() + WAIT_SECONDS
        with self._engine_events() as stream:
            while not (found := condition()):
                ready, _, _ = select.select([stream], [], [], max(0.0, give_up - time.monotonic()))
                assert ready, f"waited {WAIT_SECONDS:g} s for {what}"
                assert os.read(stream, 1 << 16), f"the engine's events ended during the wait for {what}"
        return found

    @contextmanager
    def _engine_events(self) -> Iterator[int]:
        # Starts a moment ago, so that no event before the first evaluation is missed.
        command = ["docker", "events", "--since", f"{time.time() - 1:.3f}", "--format", "{{.Action}}"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.fileno()
            finally:
                process.kill()

    # --- the orchestrator -------------------------------------------------------------------------------------

    def address(self, service: str = "", port: int = 0) -> str:
        """Returns the current address of a published port: a restarted container has another one.

        Args:
            service: The service; the orchestrator if it is empty.
            port: Its port in the container; 0: any that is published.
        """
        service = service or self.orchestrator

        def found() -> str:
            listed = self.compose("ps", "--format", "json", service)
            ports = [each for line in listed.splitlines() for each in json.loads(line)["Publishers"] or ()]
            published = [each for each in ports if each["PublishedPort"] and port in (0, each["TargetPort"])]
            return next((f"{each['URL']}:{each['PublishedPort']}" for each in published), "")

        return self.until(found, f"the container of {service}")

    @cached_property
    def credentials(self) -> grpc.ChannelCredentials:
        """The operator's certificate, which compose has made in a volume."""
        return grpc.ssl_channel_credentials(*map(self.operator_file, ("ca.crt", "tls.key", "tls.crt")))

    def operator_file(self, file: str) -> bytes:
        """Returns a file of the operator's volume of certificates."""
        path = f"/etc/podrace/tls/{file}"
        return self.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "command", path).encode()

    def served(self) -> ServedPolicy:
        """Returns the policy server, and the credentials of its callers."""
        make = ("podrace", "token", "caller", "--role", "viewer", "--key", "/etc/podrace/tls/mesh.key", "--json")
        token = json.loads(self.compose("exec", "-T", self.orchestrator, *make))["token"]
        addresses = (self.address("serving", port) for port in (8001, 8003, 8000))
        return ServedPolicy(*addresses, self.operator_file("ca.crt"), self.credentials, token)

    def call(self, method: str, request: Any) -> Any:
        with grpc.secure_channel(self.address(), self.credentials) as channel:
            stub = pb_grpc.OrchestratorServiceStub(channel)
            return getattr(stub, method)(request, timeout=CALL_SECONDS, wait_for_ready=True)

    def create(
        self,
        *,
        pods: tuple[int, int],
        objective: Mapping[str, Any],
        sections: Mapping[str, Any] | None = None,
        **pod: Any,
    ) -> str:
        """Creates a tournament of the example, with these limits, longer assignments and other sections.

        Its strategy leaves the length of assignments to the specification.
        """
        values = read_toml(REPOSITORY / "examples/cartpole.toml")
        values |= {"pool": {"minimum_pods": pods[0], "maximum_pods": pods[1]}, "objective": dict(objective)}
        values |= {"assignment": {"environment_steps": 1_000_000}}
        values |= {"evolution": {"strategy": "tournament", "initial_agents": 4}}
        values |= sections or {}
        spec = parse({**values, "pod": pod}, source="examples/cartpole.toml")
        request = pb.CreateTournamentRequest(request_id=f"create-{next(self._requests)}", spec=spec)
        return str(self.call("CreateTournament", request).tournament.tournament_id)

    def update(self, tournament_id: str, *, pods: tuple[int, int] | None = None, target: float | None = None) -> None:
        request = pb.UpdateTournamentRequest(
            request_id=f"update-{next(self._requests)}",
            tournament_id=tournament_id,
            pool=PoolSpec(minimum_pods=pods[0], maximum_pods=pods[1]) if pods else None,
            objective=ObjectiveSpec(target_return=target) if target is not None else None,
        )
        self.call("UpdateTournament", request)

    def cancel_tournaments(self) -> None:
        """Cancels every tournament that has not ended."""
        for one in self.call("ListTournaments", pb.ListTournamentsRequest()).tournaments:
            if not one.HasField("end_time"):
                request = pb.CancelTournamentRequest(
                    request_id=f"cancel-{next(self._requests)}", tournament_id=one.tournament_id, reason="a test failed"
                )
                self.call("CancelTournament", request)

    def watch(
        self, tournament_id: str, holds: Callable[[Seen], object], what: str, seconds: float = WAIT_SECONDS
    ) -> Seen:
        """Waits until a condition holds for what the orchestrator has reported, across its restarts."""
        seen = Seen(Tournament(), [], [])
        give_up = time.monotonic() + seconds
        while (left := give_up - time.monotonic()) > 0:
            token = seen.events[-1].sequence if seen.events else 0
            request = pb.WatchTournamentRequest(tournament_id=tournament_id, resume_token=token)
            with grpc.secure_channel(self.address(), self.credentials) as channel:
                stub = pb_grpc.OrchestratorServiceStub(channel)
                try:
                    for message in stub.WatchTournament(
                        request, timeout=min(left, ATTEMPT_SECONDS), wait_for_ready=True
                    ):
                        seen = Seen(message.tournament, list(message.pods), [*seen.events, *message.events])
                        if holds(seen):
                            return seen
                except grpc.RpcError as error:
                    if error.code() not in (*RESTARTING, grpc.StatusCode.DEADLINE_EXCEEDED):
                        raise
                else:
                    break
        raise AssertionError(f"{what} did not happen; the last events: {_last_lines(seen.events)}")

    # --- metrics ----------------------------------------------------------------------------------------------

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Returns labels and value of each sample that the collector finds."""
        query = ("promtool", "query", "instant", "--format", "json", "http://127.0.0.1:9090", expression)
        answer = json.loads(self.compose("exec", "-T", "prometheus", *query))
        return [(sample["metric"], float(sample["value"][1])) for sample in answer]


def environment_of(project: str, folder: Path, modules: Sequence[Path]) -> dict[str, str]:
    """Returns the variables of the compose file for a project of tests, and writes the files that they name.

    Args:
        project: Name of the project.
        folder: Empty folder. Containers of pods can write to its folder `reports`.
        modules: Modules to mount into the containers of pods.
    """
    secrets, reports = folder / "secrets", folder / "reports"
    for each in (secrets, reports):
        each.mkdir()
    for name in ("access", "secret"):
        (secrets / name).write_text(f"test-{name}-key")
        (secrets / name).chmod(0o644)
    # Containers write there; pytest keeps its folders private.
    for each in (folder, *folder.parents[:2]):
        if each.stat().st_uid == os.getuid() and each != Path("/tmp"):
            each.chmod(0o755)
    reports.chmod(0o777)
    socket = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
    mounts = [f"{reports}:/reports:rw", *(f"{module}:/opt/own/{module.name}:ro" for module in modules)]
    return {
        # Engines without a registry have the image of this name, and none with the digest of deploy/compose/.env.
        "PODRACE_PYTHON_IMAGE": "python:3.11-slim-bookworm",
        **os.environ,
        # Names of this project only, so that other images are not overwritten.
        "PODRACE_REGISTRY": "podrace-test",
        "PODRACE_STORE_IMAGE": "podrace-test/store",
        "PODRACE_STORE_COMMAND": "none",
        "PODRACE_STORE_ACCESS_KEY_PATH": str(secrets / "access"),
        "PODRACE_STORE_SECRET_KEY_PATH": str(secrets / "secret"),
        "PODRACE_DOCKER_SOCKET": str(socket),
        "PODRACE_DOCKER_GROUP": str(socket.stat().st_gid),
        "PODRACE_PROMETHEUS_PORT": "0",
        "PODRACE_SERVING_HTTP_PORT": "0",
        "PODRACE_SERVING_GRPC_PORT": "0",
        "PODRACE_SERVING_TOKEN_PORT": "0",
        "PODRACE_TEST_MOUNTS": ",".join(mounts),
        "COMPOSE_PROJECT_NAME": project,
    }


@contextmanager
def running(stack: Stack, *services: str) -> Iterator[Stack]:
    """Starts services of a project, and removes everything at the end: nothing may be left.

    Shared memory is not examined: each pod has its own in its containers, which is removed with them.
    """
    try:
        stack.compose("up", "--detach", "--wait", "--wait-timeout", "180", *services)
        yield stack
        # `down` must find no pods: they end with their tournaments.
        stack.down()
        left = stack.left()
        assert not left, stack.run("inspect", "--format", "{{json .}}", *left)[:4000]
    finally:
        stack.remove_pods()
        stack.down()


def _last_lines(events: Sequence[pb.Event]) -> str:
    return "; ".join(event.message for event in events[-8:])
