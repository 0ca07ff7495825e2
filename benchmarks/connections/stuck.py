"""Measures the time from a stuck role to training again, on an embedded mesh with the settings of production.

    python -m benchmarks.connections.stuck --repeats 20 [--cases stop-worker,stop-leader,hold-worker]

Cases:
    stop-worker     SIGSTOP of the worker
    stop-leader     SIGSTOP of the leader, so that the pod is silent
    hold-worker     a step of the simulator that holds the interpreter's lock and does not return

One pod (layout `separate`) trains on an environment that sleeps. It steps 400 times a second and makes an update about
once a second. The time ends with the first update that a restarted role or another pod has contributed to.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentpod.liveness.deadlines import percentile_99
from orchestrator.decisions.dispatch import MOST_LOSSES
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import PodraceError
from podrace.mesh.home import Folders
from podrace.progress_deadlines import ProgressDeadlines

REPOSITORY = Path(__file__).parents[2]
CASES = {"stop-worker": "worker-0", "stop-leader": "learner", "hold-worker": "worker-0"}
"""The role that gets stuck."""
POLL_SECONDS = 0.05
CALL_SECONDS = 0.5
LONGEST_DEADLINE_SECONDS = ProgressDeadlines().ceiling_seconds
"""Deadline of a role whose deadline is not learned yet."""
LONGEST_SECONDS = 300.0
START_SECONDS = 300.0
STOP_SECONDS = 120.0
HELD_SECONDS = 3600.0
MOST_REPEATS = 3 * MOST_LOSSES - 1
"""The agents here are never scored. So one fails after MOST_LOSSES pods, and the tournament after three agents."""
SPECIFICATION = """
name = "stuck"
[environment]
id = "python:tests.chaos.sleepy_environment:Sleepy"
count = 2
options = {{ step_seconds = 0.005, faults = "{faults}" }}
[algorithms.ppo.hyperparameters]
horizon = 64
minibatch_size = 64
hidden_sizes = [16]
[evaluation]
episodes = 2
every_environment_steps = 1_000_000_000
[assignment]
environment_steps = 1_000_000_000
[pod]
layout = "separate"
cores = 1.0
memory_bytes = 1_073_741_824
[pool]
minimum_pods = 1
maximum_pods = 1
[objective]
wall_clock_duration = "100h"
"""


@dataclass(frozen=True)
class State:
    """What the leader of a pod reports."""

    pod_id: str
    restarts: int
    """How many times it has opened its roles again."""
    updates: int
    deadline_seconds: float
    """Of the worker."""

    @property
    def run(self) -> tuple[str, int]:
        """Differs after a role was restarted, and in another pod."""
        return self.pod_id, self.restarts


class Mesh:
    """An embedded mesh with one pod."""

    def __init__(self, folder: Path) -> None:
        self.faults, self.folders = folder / "faults", Folders.of(folder / "home")

    async def state(self) -> State | None:
        """Returns the state of the pod that answers; None if none does."""
        for file in self.folders.pods.glob("*/pod.json"):
            async with rpc.connect(f"unix:{file.parent / 'learner.sock'}", pb.DESCRIPTOR) as channel:
                stub: Any = pb_grpc.LearnerServiceStub(channel)
                with contextlib.suppress(PodraceError):
                    found = await rpc.call(stub.GetLearner, pb.GetLearnerRequest(), deadline_seconds=CALL_SECONDS)
                    worker = next((one for one in found.progress.roles if one.role == "worker-0"), None)
                    deadline = worker.deadline_duration.ToNanoseconds() / 1e9 if worker else 0.0
                    return State(found.pod_id, found.role_restarts, found.progress.policy_version, deadline)
        return None

    async def trains_with_learned_deadlines(self) -> State:
        """Waits until the pod has been observed long enough, and returns its state."""
        async with asyncio.timeout(START_SECONDS):
            while (state := await self.state()) is None or not 0 < state.deadline_seconds < LONGEST_DEADLINE_SECONDS:
                await asyncio.sleep(POLL_SECONDS)
            return state

    async def trains_again(self, before: State) -> None:
        """Waits for an update in another run."""
        begun: State | None = None
        async with asyncio.timeout(LONGEST_SECONDS):
            while True:
                state = await self.state()
                if state and state.run != before.run:
                    if begun and state.run == begun.run and state.updates > begun.updates:
                        return
                    begun = begun if begun and begun.run == state.run else state
                await asyncio.sleep(POLL_SECONDS)

    def inject(self, case: str, pod_id: str) -> None:
        """Lets a role of the pod get stuck."""
        if case.startswith("hold"):
            partial = self.faults / ".hold"
            partial.write_text(str(HELD_SECONDS))
            partial.rename(self.faults / "hold")
            return
        roles = json.loads((self.folders.pods / pod_id / "pod.json").read_text())["roles"]
        os.kill(roles[CASES[case]]["pid"], signal.SIGSTOP)


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[Mesh]:
    mesh = Mesh(folder)
    mesh.faults.mkdir()
    specification = folder / "stuck.toml"
    specification.write_text(SPECIFICATION.format(faults=mesh.faults))
    command = [sys.executable, "-m", "podrace.cli", "train", str(specification), "--json"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with (folder / "errors").open("w") as errors:
        training = subprocess.Popen(
            [*command, "--home", str(folder / "home")], stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        try:
            yield mesh
        finally:
            training.send_signal(signal.SIGINT)
            training.wait(STOP_SECONDS)


async def _measure(mesh: Mesh, case: str, repeats: int) -> list[float]:
    """Returns the seconds of each repeat."""
    found = []
    for _ in range(repeats):
        await mesh.trains_with_learned_deadlines()
        # Not always at the same time after a poll of the supervisor or a renewal of the lease.
        await asyncio.sleep(random.uniform(2.0, 6.0))
        before = await mesh.trains_with_learned_deadlines()
        print(f"{case}: the worker has a deadline of {before.deadline_seconds:.1f} s", file=sys.stderr, flush=True)
        mesh.inject(case, before.pod_id)
        begun = time.monotonic()
        await mesh.trains_again(before)
        found.append(time.monotonic() - begun)
        print(f"{case}: {found[-1]:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Prints one JSON object for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help=f"repeats of each case, at most {MOST_REPEATS}")
    parser.add_argument("--cases", default=",".join(CASES), help="cases, separated by commas")
    options = parser.parse_args()
    cases = options.cases.split(",")
    if unknown := sorted(set(cases) - CASES.keys()):
        parser.error(f"--cases: unknown {', '.join(unknown)}; expected {', '.join(CASES)}")
    if not 0 < options.repeats <= MOST_REPEATS:
        parser.error(f"--repeats: {options.repeats}; expected 1 to {MOST_REPEATS}")
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, _running(Path(name)) as mesh:
            found = asyncio.run(_measure(mesh, case, options.repeats))
        line = {"benchmark": "stuck", "case": case, "metric": "seconds to training", "unit": "s"}
        figures = {"value": statistics.median(found), "p99": percentile_99(found), "most": max(found)}
        rounded = {key: round(value, 1) for key, value in figures.items()}
        print(json.dumps(line | rounded | {"repeats": len(found)}), flush=True)


if __name__ == "__main__":
    main()
