"""Runs the `podrace` command on a home as a user does, and inspects the processes of its mesh."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.mesh.home import Folders

REPOSITORY = Path(__file__).parents[2]
IMPORTED = (".", "tests/integration/agentpod", "tests/e2e", "tests/chaos")
"""Folders from which the processes of a mesh import."""

SPEC = """
name = "small"
seed = 3
[environment]
id = "CartPole-v1"
count = 8
[algorithms.ppo.hyperparameters]
horizon = 64
minibatch_size = 128
hidden_sizes = [16]
[assignment]
environment_steps = 4096
[evaluation]
episodes = 8
every_environment_steps = 2048
share = 1.0
[evolution]
initial_agents = 2
[champion]
reevaluate_episodes = 8
[objective]
"""


def wait_for(condition: Callable[[], Any], seconds: float = 60.0, *, what: str = "nothing") -> Any:
    """Polls a condition until its result is true, and returns the result.

    The pauses grow with the time that one poll takes: many conditions call a service or read all of /proc.
    """
    deadline = time.monotonic() + seconds
    while (now := time.monotonic()) < deadline:
        found = condition()
        if found:
            return found
        time.sleep(min(0.25, max(0.02, 3 * (time.monotonic() - now))))
    raise AssertionError(f"{what}: not within {seconds:g} s")


@dataclass
class Home:
    """A home, the commands that were run on it, and the processes of its mesh."""

    path: Path
    python: str = ""
    """Runs the commands; empty: `sys.executable`."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def folders(self) -> Folders:
        return Folders.of(self.path)

    def spec(self, objective: str, *, sleeps: bool = False, **sections: str) -> Path:
        """Writes the small specification with an objective and further sections.

        An environment that `sleeps` is for tests that wait while pods train: it leaves the processors to other tests.
        """
        path = self.path.parent / f"{self.path.name}.toml"
        more = "".join(f"\n[{name.replace('__', '.')}]\n{body}\n" for name, body in sections.items())
        spec = SPEC.replace("CartPole-v1", "python:sleepy_environment:Drowsy") if sleeps else SPEC
        path.write_text(spec + objective + "\n" + more)
        return path

    def start(self, *arguments: str, with_home: bool = True, errors: Path | None = None) -> subprocess.Popen[str]:
        """Starts a command in a new session.

        Args:
            arguments: The command and its arguments.
            with_home: Whether the command gets this home.
            errors: File for its stderr; None: a pipe, at which a command waits that writes much and is not read.
        """
        home = ["--home", str(self.path)] if with_home else []
        process = subprocess.Popen(
            [self.python or sys.executable, "-m", "podrace.cli", *arguments, *home],
            stdout=subprocess.PIPE,
            stderr=errors.open("w") if errors else subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": ":".join(str(REPOSITORY / folder) for folder in IMPORTED),
            },
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, seconds: float = 100.0, with_home: bool = True) -> tuple[int, str, str]:
        """Runs a command and returns its exit code, stdout and stderr."""
        process = self.start(*arguments, with_home=with_home)
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err

    def json(self, *arguments: str, seconds: float = 100.0, with_home: bool = True) -> Any:
        """Runs a command that must succeed and returns its JSON output."""
        code, out, err = self.run(*arguments, "--json", seconds=seconds, with_home=with_home)
        assert code == 0, err
        return json.loads(out)

    def published(self, *arguments: str, seconds: float = 100.0, with_home: bool = True) -> Any:
        """Like `json`; the output also satisfies the published schema of the command."""
        import json_schemas  # imported only here: the programs of tests/chaos do not have its folder on their path

        value = self.json(*arguments, seconds=seconds, with_home=with_home)
        json_schemas.check(arguments, value)
        return value

    def processes(self) -> dict[int, str]:
        """Returns pids and command lines of all processes of this home except the commands.

        Forked roles keep the command line of their fork server, which contains the runtime folder.
        """
        own = {process.pid for process in self.started}
        found = {}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                pid = int(entry.parent.name)
                if str(self.folders.runtime) in line and pid not in own:
                    found[pid] = line
        return found

    def service(self, name: str) -> int:
        """Returns the pid of the orchestrator, the leaderboard or the fork server."""
        wanted = "agentpod forkserver" if name == "fork server" else f"-m {name} "
        roles = {pid for pods in self.roles().values() for pid in pods.values()}
        (pid,) = (pid for pid, line in self.processes().items() if wanted in line and pid not in roles)
        return pid

    def roles(self) -> dict[str, dict[str, int]]:
        """Returns the pids of the roles of each running pod, by pod id and role."""
        pods = {}
        for path in self.folders.pods.glob("*/pod.json"):
            with contextlib.suppress(OSError, ValueError):
                content = json.loads(path.read_text())
                pids = {role: entry["pid"] for role, entry in content["roles"].items()}
                if Path(f"/proc/{pids.get('learner', 0)}").exists():
                    pods[content["pod_id"]] = pids
        return pods

    def candidates(self, tournament_id: str) -> list[leaderboard_pb2.Candidate]:
        """Returns all submissions in order of arrival; empty while the leaderboard does not answer."""
        with grpc.insecure_channel(f"unix:{self.folders.leaderboard_socket}") as channel:
            stub = leaderboard_pb2_grpc.LeaderboardServiceStub(channel)
            request = leaderboard_pb2.ListCandidatesRequest(
                tournament_id=tournament_id, all_submissions=True, page_size=1000
            )
            with contextlib.suppress(grpc.RpcError):
                return list(stub.ListCandidates(request, timeout=2).candidates)
        return []

    def tournament_id(self) -> str:
        """Returns the id of the only tournament, read from the names of its logs; empty if there is none yet."""
        names = {path.name.rpartition("-p")[0] for path in self.folders.logs.glob("*-p*.log")}
        return next(iter(names), "")

    def left_behind(self) -> list[str]:
        """Returns processes and files that should not exist while no command runs."""
        memory = [path.name for path in Path("/dev/shm").glob(f"podrace-{self.tournament_id()}-p*")]
        runtime = [str(self.folders.runtime)] if self.folders.runtime.exists() else []
        return [*self.processes().values(), *memory, *runtime]
