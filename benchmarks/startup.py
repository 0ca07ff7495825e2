"""Measures how long a mesh takes from a wish to a pod that trains; prints one JSON object a line.

Cases:
    create   CreateTournament to the first environment step of the first pod
    grow     a higher limit of the pool to the first environment step of the pod that comes
    move     the death of a pod (kill -9) to its agent training in the one that takes its place, as it is told

By default a mesh of processes is started in a folder of its own. `--orchestrator` names one that runs, whatever starts
its pods; it needs room for two pods of one core and 1 GiB. A pod tells of its steps every third of its lease: the
moment of the first is what it told, less what its steps took at the speed it told. `--kill` is a shell command that
kills the pod {pod} of such a mesh; without it nothing is moved there.

    python benchmarks/startup.py [--quick]
    python benchmarks/startup.py --orchestrator ADDRESS --mesh compose --kill COMMAND

where COMMAND may be 'docker kill $(docker ps --quiet --filter label=podrace.pod={pod})'.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from podrace import rpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec, PoolSpec

CALL_SECONDS = 10.0
PATIENCE_SECONDS = 120.0
START_SECONDS = 30.0
LEASE_SECONDS = 0.9
SPECIFICATION = {
    "name": "startup",
    "environment": {"id": "cartpole", "count": 16},
    "algorithms": {"ppo": {}},
    "objective": {"wall_clock_duration": "10m"},
    "pool": {"minimum_pods": 1, "maximum_pods": 1},
    "pod": {"layout": "fused", "cores": 1.0, "memory_bytes": 1 << 30},
}


def report(mesh: str, case: str, values: list[float]) -> None:
    """Prints one line: the median of the repetitions, and the extremes."""
    middle = sorted(values)[len(values) // 2]
    line = {"benchmark": "startup", "case": f"{mesh}/{case}", "metric": "seconds", "value": round(middle, 2)}
    print(json.dumps(line | {"unit": "s", "least": round(min(values), 2), "most": round(max(values), 2)}), flush=True)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[str]:
    """A standing mesh of processes; gives the address of its orchestrator."""
    shared = {"store": f"folder://{folder}/store", "runtime_folder": folder, "telemetry.metrics_listen": ""}
    services = {
        "leaderboard": {"server.listen": f"unix:{folder}/l.sock", "database": folder / "l.sqlite"},
        "orchestrator": {
            "server.listen": f"unix:{folder}/o.sock",
            "database": folder / "o.sqlite",
            "leaderboard": f"unix:{folder}/l.sock",
            "log_folder": folder / "logs",
            "lease_duration_seconds": LEASE_SECONDS,
        },
    }
    started = []
    with (folder / "services.log").open("w") as log:
        for name, settings in services.items():
            told = [word for key, value in (shared | settings).items() for word in ("--set", f"{key}={value}")]
            started.append(subprocess.Popen([sys.executable, "-m", name, *told], stderr=log))
        try:
            yield f"unix:{folder}/o.sock"
        finally:
            for process in reversed(started):
                os.kill(process.pid, signal.SIGTERM)
                process.wait(START_SECONDS)


class Mesh:
    """A running mesh, seen from outside."""

    def __init__(self, channel: Any) -> None:
        self._stub: Any = pb_grpc.OrchestratorServiceStub(channel)

    async def create(self) -> str:
        """Begins a tournament of one pod."""
        spec = parse(SPECIFICATION, source="startup")
        request = pb.CreateTournamentRequest(request_id=uuid.uuid4().hex, spec=spec)
        answer = await rpc.call(self._stub.CreateTournament, request, deadline_seconds=CALL_SECONDS)
        return str(answer.tournament.tournament_id)

    async def limit(self, name: str, pods: int) -> None:
        """Sets how many pods it has."""
        pool = PoolSpec(minimum_pods=pods, maximum_pods=pods)
        request = pb.UpdateTournamentRequest(request_id=uuid.uuid4().hex, tournament_id=name, pool=pool)
        await rpc.call(self._stub.UpdateTournament, request, deadline_seconds=CALL_SECONDS)

    async def agent_of(self, name: str, pod_id: str) -> str:
        """The agent that a pod trains."""
        answer = await rpc.call(self._stub.ListPods, pb.ListPodsRequest(tournament_id=name), deadline_seconds=5.0)
        return next(str(pod.agent_id) for pod in answer.pods if pod.pod_id == pod_id)

    async def trained_elsewhere(self, name: str, agent_id: str, before: str) -> float:
        """When another pod than before told that it trains an agent; raises as first_step."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            request = pb.WatchTournamentRequest(tournament_id=name)
            async for message in rpc.stream(self._stub.WatchTournament, request, deadline_seconds=None):
                for pod in message.pods:
                    if pod.agent_id == agent_id and pod.pod_id != before and pod.progress.steps_per_second:
                        return time.monotonic()
        raise TimeoutError

    async def end(self, name: str) -> None:
        """Ends it, and waits until its pods have gone."""
        objective = ObjectiveSpec(environment_steps=1)
        request = pb.UpdateTournamentRequest(request_id=uuid.uuid4().hex, tournament_id=name, objective=objective)
        await rpc.call(self._stub.UpdateTournament, request, deadline_seconds=CALL_SECONDS)
        while (await rpc.call(self._stub.ListPods, pb.ListPodsRequest(tournament_id=name), deadline_seconds=5.0)).pods:
            await asyncio.sleep(0.2)

    async def first_step(self, name: str, known: frozenset[str]) -> tuple[float, str]:
        """When a pod that is not known took its first step, by this process' clock, and which it was.

        Raises:
            TimeoutError: None has within two minutes.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            request = pb.WatchTournamentRequest(tournament_id=name)
            async for message in rpc.stream(self._stub.WatchTournament, request, deadline_seconds=None):
                for pod in message.pods:
                    told = pod.progress
                    if pod.pod_id not in known and told.environment_steps and told.steps_per_second:
                        return time.monotonic() - told.environment_steps / told.steps_per_second, pod.pod_id
        raise TimeoutError


def kill_by(command: str, pod_id: str) -> None:
    """Kills a pod as a command says."""
    subprocess.run(command.replace("{pod}", pod_id), shell=True, check=True, stdout=subprocess.DEVNULL)


def kill_processes(folder: Path, pod_id: str) -> None:
    """Kills all processes of a pod at once."""
    (file,) = folder.glob(f"**/{pod_id}/pod.json")
    for role in json.loads(file.read_text())["roles"].values():
        os.kill(role["pid"], signal.SIGKILL)


async def measure(address: str, mesh_name: str, repetitions: int, kill: Callable[[str], object] | None) -> None:
    """Prints all cases."""
    created, grown, moved = [], [], []
    await rpc.wait_until_serving(address, deadline_seconds=START_SECONDS)
    async with rpc.connect(address, pb.DESCRIPTOR) as channel:
        mesh = Mesh(channel)
        for _ in range(repetitions):
            begin = time.monotonic()
            name = await mesh.create()
            at, first = await mesh.first_step(name, frozenset())
            created.append(at - begin)
            begin = time.monotonic()
            await mesh.limit(name, 2)
            at, _ = await mesh.first_step(name, frozenset({first}))
            grown.append(at - begin)
            if kill:
                agent_id, begin = await mesh.agent_of(name, first), time.monotonic()
                await asyncio.to_thread(kill, first)
                moved.append(await mesh.trained_elsewhere(name, agent_id, first) - begin)
            await mesh.end(name)
    # The first waits for what later ones find there: with processes, a parent that has imported torch.
    report(mesh_name, "create, the first", created[:1])
    if created[1:]:
        report(mesh_name, "create", created[1:])
    report(mesh_name, "grow", grown)
    if moved:
        report(mesh_name, "move", moved)


def main() -> None:
    """Measures what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once instead of five times")
    parser.add_argument("--orchestrator", default="", help="of a mesh that runs")
    parser.add_argument("--mesh", default="process", help="what it is called in the lines")
    parser.add_argument("--kill", default="", help="command that kills the pod {pod} of that mesh")
    told = parser.parse_args()
    repetitions = 1 if told.quick else 5
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pr", dir="/tmp")))
        kill: Callable[[str], object] | None = partial(kill_processes, folder)
        if told.orchestrator:
            kill = partial(kill_by, told.kill) if told.kill else None
        address = told.orchestrator or stack.enter_context(processes(folder))
        asyncio.run(measure(address, told.mesh, repetitions, kill))


if __name__ == "__main__":
    main()
