"""Measures how fast a mesh reacts, from a request to a pod that trains; prints one JSON object per line.

Cases:
    create   CreateTournament to the first environment step of the first pod
    grow     a raised limit of the pool to the first environment step of the new pod
    move     the kill of a pod (kill -9) to the first report that its agent trains in the pod that replaces it

By default a mesh of processes is started in its own folder. `--orchestrator` names one that is already running, with
any launcher; it needs room for two pods of one core and 1 GiB. A pod reports its steps every third of its lease: the
time of its first step is the time of the report, minus the duration of the reported steps at the reported rate.
`--kill` is a shell command that kills the pod {pod} of such a mesh; without it the case `move` is skipped.

    python -m benchmarks.services.startup [--quick]
    python -m benchmarks.services.startup --orchestrator ADDRESS --mesh compose --kill COMMAND

COMMAND may be 'docker kill $(docker ps --quiet --filter label=podrace.pod={pod})'.
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
WAIT_SECONDS = 120.0
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
    """Prints one result: the median of the repetitions, and the extremes."""
    middle = sorted(values)[len(values) // 2]
    line = {"benchmark": "startup", "case": f"{mesh}/{case}", "metric": "seconds", "value": round(middle, 2)}
    print(json.dumps(line | {"unit": "s", "least": round(min(values), 2), "most": round(max(values), 2)}), flush=True)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[str]:
    """Runs a mesh of processes; yields the address of its orchestrator."""
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
            arguments = [word for key, value in (shared | settings).items() for word in ("--set", f"{key}={value}")]
            started.append(subprocess.Popen([sys.executable, "-m", name, *arguments], stderr=log))
        try:
            yield f"unix:{folder}/o.sock"
        finally:
            for process in reversed(started):
                os.kill(process.pid, signal.SIGTERM)
                process.wait(START_SECONDS)


class RunningMesh:
    """A client of a running mesh."""

    def __init__(self, channel: Any) -> None:
        self._stub: Any = pb_grpc.OrchestratorServiceStub(channel)

    async def create(self) -> str:
        """Creates a tournament of one pod."""
        spec = parse(SPECIFICATION, source="startup")
        request = pb.CreateTournamentRequest(request_id=uuid.uuid4().hex, spec=spec)
        answer = await rpc.call(self._stub.CreateTournament, request, deadline_seconds=CALL_SECONDS)
        return str(answer.tournament.tournament_id)

    async def limit(self, name: str, pods: int) -> None:
        """Sets the number of pods."""
        pool = PoolSpec(minimum_pods=pods, maximum_pods=pods)
        request = pb.UpdateTournamentRequest(request_id=uuid.uuid4().hex, tournament_id=name, pool=pool)
        await rpc.call(self._stub.UpdateTournament, request, deadline_seconds=CALL_SECONDS)

    async def agent_of(self, name: str, pod_id: str) -> str:
        """Returns the agent that a pod trains."""
        answer = await rpc.call(self._stub.ListPods, pb.ListPodsRequest(tournament_id=name), deadline_seconds=5.0)
        return next(str(pod.agent_id) for pod in answer.pods if pod.pod_id == pod_id)

    async def trained_elsewhere(self, name: str, agent_id: str, before: str) -> float:
        """Returns when another pod first reported that it trains an agent; raises the errors of first_step."""
        async with asyncio.timeout(WAIT_SECONDS):
            request = pb.WatchTournamentRequest(tournament_id=name)
            async for message in rpc.stream(self._stub.WatchTournament, request, deadline_seconds=None):
                for pod in message.pods:
                    if pod.agent_id == agent_id and pod.pod_id != before and pod.progress.steps_per_second:
                        return time.monotonic()
        raise TimeoutError

    async def end(self, name: str) -> None:
        """Ends a tournament, and waits until its pods are gone."""
        objective = ObjectiveSpec(environment_steps=1)
        request = pb.UpdateTournamentRequest(request_id=uuid.uuid4().hex, tournament_id=name, objective=objective)
        await rpc.call(self._stub.UpdateTournament, request, deadline_seconds=CALL_SECONDS)
        while (await rpc.call(self._stub.ListPods, pb.ListPodsRequest(tournament_id=name), deadline_seconds=5.0)).pods:
            await asyncio.sleep(0.2)

    async def first_step(self, name: str, known: frozenset[str]) -> tuple[float, str]:
        """Returns when an unknown pod took its first step, by this process' clock, and its id.

        Raises:
            TimeoutError: No new pod took a step within two minutes.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            request = pb.WatchTournamentRequest(tournament_id=name)
            async for message in rpc.stream(self._stub.WatchTournament, request, deadline_seconds=None):
                for pod in message.pods:
                    progress = pod.progress
                    if pod.pod_id not in known and progress.environment_steps and progress.steps_per_second:
                        return time.monotonic() - progress.environment_steps / progress.steps_per_second, pod.pod_id
        raise TimeoutError


def kill_by(command: str, pod_id: str) -> None:
    """Kills a pod by a shell command."""
    subprocess.run(command.replace("{pod}", pod_id), shell=True, check=True, stdout=subprocess.DEVNULL)


def kill_processes(folder: Path, pod_id: str) -> None:
    """Kills all processes of a pod."""
    (file,) = folder.glob(f"**/{pod_id}/pod.json")
    for role in json.loads(file.read_text())["roles"].values():
        os.kill(role["pid"], signal.SIGKILL)


async def measure(address: str, mesh_name: str, repetitions: int, kill: Callable[[str], object] | None) -> None:
    """Measures and prints all cases."""
    created, grown, moved = [], [], []
    await rpc.wait_until_serving(address, deadline_seconds=START_SECONDS)
    async with rpc.connect(address, pb.DESCRIPTOR) as channel:
        mesh = RunningMesh(channel)
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
    # The first run includes work that later ones reuse: with processes, starting a fork server that imports torch.
    report(mesh_name, "create, the first", created[:1])
    if created[1:]:
        report(mesh_name, "create", created[1:])
    report(mesh_name, "grow", grown)
    if moved:
        report(mesh_name, "move", moved)


def main() -> None:
    """Measures as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once instead of five times")
    parser.add_argument("--orchestrator", default="", help="address of the orchestrator of a running mesh")
    parser.add_argument("--mesh", default="process", help="name of the mesh in the results")
    parser.add_argument("--kill", default="", help="command that kills the pod {pod} of that mesh")
    options = parser.parse_args()
    repetitions = 1 if options.quick else 5
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pr", dir="/tmp")))
        kill: Callable[[str], object] | None = partial(kill_processes, folder)
        if options.orchestrator:
            kill = partial(kill_by, options.kill) if options.kill else None
        address = options.orchestrator or stack.enter_context(processes(folder))
        asyncio.run(measure(address, options.mesh, repetitions, kill))


if __name__ == "__main__":
    main()
