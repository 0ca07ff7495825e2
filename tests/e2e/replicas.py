"""Runs a mesh whose services have two replicas each, with their state on a server of PostgreSQL."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from homes import wait_for
from postgresql_server import PostgresqlServer

DEADLINE_SECONDS = 60.0
SERVICES = ("orchestrator", "leaderboard")


class ReplicatedMesh:
    """Two orchestrators, two leaderboards, and pods that are started from outside.

    Attributes:
        addresses: The addresses of the replicas of each service, as its clients are configured with them.
    """

    def __init__(self, folder: Path, server: PostgresqlServer, stack: ExitStack, url: str = "") -> None:
        self._folder, self._server, self._stack = folder, server, stack
        self._url = url or server.new_url()
        self._ports = {service: _free_ports(2) for service in SERVICES}
        self._replicas: dict[str, list[subprocess.Popen[bytes]]] = {service: [] for service in SERVICES}
        self.addresses = {
            service: "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports) for service, ports in self._ports.items()
        }
        for number in range(2):
            self.start_replica("leaderboard", number)
            self.start_replica("orchestrator", number)

    def start_replica(self, service: str, number: int) -> None:
        """Starts a replica; one that ended is replaced."""
        own = self._folder / f"{service}-{number}"
        settings: dict[str, Any] = {"server.listen": f"127.0.0.1:{self._ports[service][number]}", "database": self._url}
        if service == "orchestrator":
            settings |= {
                "leaderboard": self.addresses["leaderboard"],
                "runtime_folder": own,
                "log_folder": own / "logs",
                "launcher": "external",
                "lease_duration_seconds": 5,
            }
        started = self._start(own.name, service, settings)
        self._replicas[service][number : number + 1] = [started]

    def start_pod(self) -> "subprocess.Popen[bytes]":
        """Starts a pod that works for any tournament; the key of the mesh must exist."""
        folder = self._folder / "pod"
        folder.mkdir(mode=0o700)
        settings = {**self.addresses, "pod_id": "", "standing": "true", "folder": folder}
        return self._start("pod", "agentpod", settings, "learner")

    def _start(self, name: str, program: str, settings: dict[str, Any], *more: str) -> "subprocess.Popen[bytes]":
        shared = {"telemetry.log_format": "json", "store": f"folder://{self._folder}/store"}
        arguments = [argument for key, value in (shared | settings).items() for argument in ("--set", f"{key}={value}")]
        log = self._stack.enter_context(self.log(name).open("ab"))
        process = subprocess.Popen([sys.executable, "-m", program, *more, *arguments], stderr=log)
        self._stack.callback(_end, process)
        return process

    def log(self, name: str) -> Path:
        """Returns the log of a replica, such as `orchestrator-0`, or of the pod."""
        return self._folder / f"{name}.log"

    def epoch(self, service: str) -> int:
        """Returns the epoch of the present leader, or of the last one."""
        ((epoch,),) = self._server.execute(self._url, f"SELECT epoch FROM {service}.leadership")
        return int(epoch)

    def leader(self, service: str) -> int:
        """Returns the number of the replica that leads: the process that holds the lease."""

        def found() -> list[int]:
            rows = self._server.execute(
                self._url, f"SELECT address FROM {service}.leadership WHERE expire_time > clock_timestamp()"
            )
            pids = [int(address.rpartition("/")[2]) for (address,) in rows]
            return [number + 1 for number, replica in enumerate(self._replicas[service]) if replica.pid in pids]

        return int(wait_for(found, DEADLINE_SECONDS, what=f"a leader of the {service}")[0]) - 1

    def process(self, service: str, number: int) -> "subprocess.Popen[bytes]":
        """Returns the process of a replica."""
        return self._replicas[service][number]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
    process.wait(DEADLINE_SECONDS)


@contextlib.contextmanager
def replicated_mesh(folder: Path, server: PostgresqlServer, url: str = "") -> Iterator[ReplicatedMesh]:
    """Runs such a mesh while the block runs, on a new database or on the one that is named."""
    with ExitStack() as stack:
        try:
            yield ReplicatedMesh(folder, server, stack, url)
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-4000:]}")
            raise
