"""Runs the processes of a simulated mesh: a real orchestrator, a real leaderboard, and processes that simulate pods."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loops.process import environment

from podrace import rpc
from podrace.access.token_file import operator_token
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

START_SECONDS = 60.0
DEADLINE_SECONDS = 60.0
UNGUARDED = Path(__file__).with_name("unguarded.py")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class ServiceProcess:
    """The process of a service."""

    process: asyncio.subprocess.Process
    address: str
    database: Path

    @property
    def cpu_seconds(self) -> float:
        """CPU time used by all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    @property
    def running_seconds(self) -> float:
        """CPU time used by its present threads, more precise than `cpu_seconds`."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    @property
    def waited_seconds(self) -> float:
        """Time in which threads were ready to run but had no CPU: the effect of other load on the machine."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9

    @property
    def memory_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The two services of a mesh."""

    folder: Path
    orchestrator: ServiceProcess
    leaderboard: ServiceProcess

    @property
    def services(self) -> Mapping[str, ServiceProcess]:
        """The services by name."""
        return {"orchestrator": self.orchestrator, "leaderboard": self.leaderboard}

    @property
    def store(self) -> Path:
        """The folder in which simulated pods publish."""
        return self.folder / "store"

    @property
    def logs(self) -> Path:
        """The folder in which the launcher writes the token of each pod, `POD.token`."""
        return self.folder / "logs"

    @property
    def generated(self) -> Path:
        """The file to which the orchestrator writes, on exit, how long the leaderboard took for each agent."""
        return self.folder / "generated.json"

    async def create(self, spec: TournamentSpec) -> str:
        """Creates a tournament and returns its id."""
        async with rpc.connect(
            self.orchestrator.address, pb.DESCRIPTOR, token=operator_token(self.orchestrator.address)
        ) as channel:
            stub: Any = pb_grpc.OrchestratorServiceStub(channel)
            request = pb.CreateTournamentRequest(request_id="benchmark", spec=spec)
            answer = await rpc.call(stub.CreateTournament, request, deadline_seconds=DEADLINE_SECONDS)
            return str(answer.tournament.tournament_id)

    async def wait_for_pods(self, tournament_id: str, count: int) -> float:
        """Waits until `count` pods run; returns how long that took, in seconds."""
        begin = time.monotonic()
        async with rpc.connect(
            self.orchestrator.address, pb.DESCRIPTOR, token=operator_token(self.orchestrator.address)
        ) as channel:
            stub: Any = pb_grpc.OrchestratorServiceStub(channel)
            request = pb.ListPodsRequest(tournament_id=tournament_id)
            while True:
                answer = await rpc.call(stub.ListPods, request, deadline_seconds=DEADLINE_SECONDS)
                if len(answer.pods) >= count:
                    return time.monotonic() - begin
                await asyncio.sleep(0.05 + count / 20_000)


@contextlib.asynccontextmanager
async def services(
    folder: Path, lease_seconds: float, *, on_ports: bool = False, guarded: bool = True
) -> AsyncIterator[Mesh]:
    """Runs a leaderboard and an orchestrator, each in its own process.

    Args:
        folder: Folder of everything that they write.
        lease_seconds: Shortest duration of leases.
        on_ports: Whether they listen on ports, where callers need tokens, and not on Unix sockets.
        guarded: False: they authorize no call, to measure what that costs.
    """
    store = folder / "store"
    os.environ["PODRACE_TOKEN_FILE"] = str(folder / "token")
    # With the plain environment: a benchmark module has the same name.
    board, plain = ["-m", "leaderboard"], None
    pods = ["-m", "pools.orchestrator", str(folder / "generated.json")]
    if not guarded:
        board, plain = [str(UNGUARDED), *board[1:]], {**os.environ, "PYTHONSAFEPATH": "1"}
        pods = ["-m", "pools.unguarded", *pods[1:]]
    async with _service(folder, "leaderboard", board, {"store": store} | _own_port(on_ports), plain) as leaderboard:
        settings = {
            "leaderboard": leaderboard.address,
            "store": store,
            "launcher": "simulated",
            "runtime_folder": folder / "run",
            "log_folder": folder / "logs",
            "lease_duration_seconds": lease_seconds,
            **_own_port(on_ports),
        }
        async with _service(folder, "orchestrator", pods, settings, environment()) as orchestrator:
            yield Mesh(folder, orchestrator, leaderboard)


def _own_port(on_ports: bool) -> dict[str, object]:
    if not on_ports:
        return {}
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"server.listen": f"127.0.0.1:{free.getsockname()[1]}"}


@contextlib.asynccontextmanager
async def _service(
    folder: Path,
    name: str,
    command: Sequence[str],
    settings: Mapping[str, object],
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[ServiceProcess]:
    address, database = f"unix:{folder}/{name}.sock", folder / f"{name}.sqlite"
    settings = {
        "server.listen": address,
        "database": database,
        "telemetry.log_format": "json",
        "telemetry.metrics_listen": "",
        **settings,
    }
    address = str(settings["server.listen"])
    overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, *overrides, stderr=log, env=env)
        try:
            await rpc.wait_until_serving(address, deadline_seconds=START_SECONDS)
            yield ServiceProcess(process, address, database)
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def simulate(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Runs the pods of each job in a separate process; returns the combined measurements."""
    seen = await asyncio.gather(*map(_simulate, jobs))
    notes: dict[str, Any] = {
        "seconds": defaultdict(list),
        "ramp_seconds": defaultdict(list),
        "errors": defaultdict(int),
    }
    for one in seen:
        for kind in ("seconds", "ramp_seconds"):
            for method, values in one[kind].items():
                notes[kind][method] += values
        for error, count in one["errors"].items():
            notes["errors"][error] += count
    for name in ("trained_seconds", "waited_seconds"):
        notes[name] = sum(one[name] for one in seen)
    notes["reached"] = min((one["reached"] for one in seen if one["reached"] is not None), default=None)
    return notes


async def _simulate(job: Mapping[str, Any]) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pools.pods",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        answer, _ = await process.communicate(json.dumps(job).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return json.loads(answer)
