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
    _requests: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    # --- the engine -------------------------------------------------------------------------------------------

    def compose(self, *arguments: str, stdin: str | None = None) -> str:
        files = [argument for file in FILES for argument in ("--file", str(REPOSITORY / file))]
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

    def address(self) -> str:
        """Returns the current address of the orchestrator: a restarted container has another port."""

        def found() -> str:
            listed = self.compose("ps", "--format", "json", self.orchestrator)
            ports = [port for line in listed.splitlines() for port in json.loads(line)["Publishers"] or ()]
            return next((f"{port['URL']}:{port['PublishedPort']}" for port in ports if port["PublishedPort"]), "")

        return self.until(found, "the orchestrator's container")

    @cached_property
    def credentials(self) -> grpc.ChannelCredentials:
        """The operator's certificate, which compose has made in a volume."""

        def content(file: str) -> bytes:
            path = f"/etc/podrace/tls/{file}"
            return self.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "command", path).encode()

        return grpc.ssl_channel_credentials(content("ca.crt"), content("tls.key"), content("tls.crt"))

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
        """Creates a tournament of the example, with these limits and other sections."""
        values = read_toml(REPOSITORY / "examples/cartpole.toml")
        values |= {"pool": {"minimum_pods": pods[0], "maximum_pods": pods[1]}, "objective": dict(objective)}
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


def _last_lines(events: Sequence[pb.Event]) -> str:
    return "; ".join(event.message for event in events[-8:])
