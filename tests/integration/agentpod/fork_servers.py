"""Runs a fork server for tests, and the pods that it forks."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket as socketlib
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripted import until

from agentpod.config import PodConfig
from podrace.processes import lifeline

REPOSITORY = Path(__file__).parents[3]
START_SECONDS, END_SECONDS = 240.0, 20.0
PEER_CREDENTIALS = struct.Struct("3i")
"""Linux struct ucred: process id, user id, group id."""


@dataclass(frozen=True)
class RunningForkServer:
    """A fork server: its process id and its socket."""

    pid: int
    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "n.sock"

    @property
    def scorers_child(self) -> Path:
        """File for the pid of the process that a function of scorers.py starts."""
        return self.folder / "child"

    def children(self) -> list[int]:
        """Pids of the roles that it has forked and that have not exited."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(child) for child in listed.split()]


@dataclass
class ForkServerProcess:
    """A connection to a fork server; its pods exit when the lifeline is released."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lifeline: Path

    async def order(self, line: bytes) -> dict:
        self.writer.write(line + b"\n")
        return json.loads(await self.reader.readline())

    async def start(self, pod: PodConfig) -> dict[str, int]:
        """Starts a pod and returns the pids of its roles."""
        fields = {**dataclasses.asdict(pod), "lifeline": str(self.lifeline)}
        answer = await self.order(json.dumps({"pod": fields}, default=str).encode())
        assert "pid" in answer, answer
        return pids(pod)


def pids(pod: PodConfig) -> dict[str, int]:
    content = json.loads((pod.folder / "pod.json").read_text())
    return {role: entry["pid"] for role, entry in content["roles"].items()}


@contextlib.contextmanager
def running_fork_server(folder: Path, python: str = "", **variables: str) -> Iterator[RunningForkServer]:
    """Runs a fork server in a folder, with `python` or sys.executable; it must exit once its lifeline is lost."""
    socket, line = folder / "n.sock", folder / "n.life"
    environment = {"PYTHONPATH": str(REPOSITORY), "SCORERS_CHILD": str(folder / "child"), **variables}
    with lifeline.hold(line):
        # It stays when the tests that use it are far apart: the lifeline ends it.
        settings = {"socket": socket, "lifeline": line, "idle_seconds": 86_400}
        overrides = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
        process = subprocess.Popen(
            [python or sys.executable, "-m", "agentpod", "forkserver", *overrides],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not socket.exists():
            assert process.poll() is None, "the fork server exited at its start"
            assert time.monotonic() < deadline, "the fork server does not listen"
            time.sleep(0.005)
        yield RunningForkServer(_listener_of(socket), folder)
    process.wait(END_SECONDS)


def _listener_of(path: Path) -> int:
    """The pid of the process that listens on a socket; that of a child may be that of a launcher."""
    with socketlib.socket(socketlib.AF_UNIX) as connection:
        connection.connect(str(path))
        size = PEER_CREDENTIALS.size
        return int(PEER_CREDENTIALS.unpack(connection.getsockopt(socketlib.SOL_SOCKET, socketlib.SO_PEERCRED, size))[0])


@contextlib.asynccontextmanager
async def connected(server: RunningForkServer, folder: Path) -> AsyncIterator[ForkServerProcess]:
    """Connects a test to a fork server; when the test ends, its pods must exit."""
    reader, writer = await asyncio.open_unix_connection(str(server.socket))
    with lifeline.hold(folder / "test.life"):
        yield ForkServerProcess(reader, writer, folder / "test.life")
    writer.close()
    await until(lambda: not server.children(), END_SECONDS)
