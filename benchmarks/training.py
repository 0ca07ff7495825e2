"""End-to-end PPO steps a second of a pod beside the simulator alone: random actions, the same cores, alternating.

A pod is a real pod: a process (or three) forked by a nursery, assignments over gRPC, rollouts through the plane.
Settings of every case: 16 environments, horizon 128, 4 epochs, minibatch 512. Prints one JSON object a line.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from google.protobuf.duration_pb2 import Duration

from agentpod.config import PodConfig
from podrace import lifeline
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import Server, ServerConfig, Service
from podrace.spec import parse, resolve
from podrace.telemetry import TelemetryConfig
from simulators import make

COUNT, HORIZON = 16, 128
CASES = [(environment, sizes) for environment in ("CartPole-v1", "Ant-v5") for sizes in ([64, 64], [256, 256])]


class OneAssignment(pb_grpc.OrchestratorServiceServicer):
    """Hands out one agent and times it from its first to its last renewal."""

    def __init__(self, assignment: pb.Assignment, seconds: float) -> None:
        self.assignment: pb.Assignment | None = assignment
        self.seconds = seconds
        self.samples: list[tuple[float, int]] = []
        self.message = ""
        self.done = asyncio.Event()

    async def AcquireAssignment(self, request, context):
        assignment, self.assignment = self.assignment, None
        if assignment:
            return pb.AcquireAssignmentResponse(assignment=assignment)
        self.done.set()
        return pb.AcquireAssignmentResponse(drain="measured")

    async def RenewAssignment(self, request, context):
        # The first updates warm caches and allocators.
        if request.progress.policy_version >= 3:
            self.samples.append((time.monotonic(), request.progress.environment_steps))
        over = self.samples and self.samples[-1][0] - self.samples[0][0] >= self.seconds
        directive = pb.DIRECTIVE_CANCEL if over else pb.DIRECTIVE_CONTINUE
        return pb.RenewAssignmentResponse(directive=directive, lease_duration=Duration(nanos=600_000_000))

    async def CompleteAssignment(self, request, context):
        self.message = request.message
        return pb.CompleteAssignmentResponse()

    def steps_per_second(self) -> float:
        if len(self.samples) < 2:
            raise SystemExit(f"the pod did not train: {self.message or 'see its log'}")
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return (last - first) / (ended - began)


def assignment(environment: str, hidden_sizes: list[int]) -> pb.Assignment:
    hyperparameters = {"horizon": HORIZON, "epochs": 4, "minibatch_size": 512, "hidden_sizes": hidden_sizes}
    spec = resolve(
        parse(
            {
                "environment": {"id": environment, "count": COUNT},
                "algorithms": {"ppo": {"hyperparameters": hyperparameters}},
                "objective": {"environment_steps": 10**12},
                "assignment": {"environment_steps": 10**12},
            },
            source="benchmark",
        )
    )
    agent = leaderboard_pb2.Agent(agent_id="benchmark-a0", tournament_id="benchmark", algorithm="ppo", seed=1)
    for name, hyperparameter in spec.algorithms["ppo"].hyperparameters.items():
        agent.hyperparameters.fields[name].CopyFrom(hyperparameter.value)
    return pb.Assignment(
        assignment_id="benchmark-a0.1",
        tournament_id="benchmark",
        spec=spec,
        lease_epoch=1,
        lease_duration=Duration(nanos=600_000_000),
        train=agent,
    )


async def measure_pod(environment: str, hidden_sizes: list[int], layout: str, seconds: float) -> float:
    """Environment steps a second of one pod."""
    orchestrator = OneAssignment(assignment(environment, hidden_sizes), seconds)
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        folder = Path(name)
        services = [
            Service(
                pb.DESCRIPTOR.services_by_name["OrchestratorService"],
                pb_grpc.add_OrchestratorServiceServicer_to_server,
                orchestrator,
            ),
            Service(
                leaderboard_pb2.DESCRIPTOR.services_by_name["UpdaterService"],
                leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server,
                leaderboard_pb2_grpc.UpdaterServiceServicer(),
            ),
        ]
        server = await Server.start(ServerConfig(listen=f"unix:{folder}/m.sock", grace_seconds=0), services)
        pod = PodConfig(
            pod_id=f"benchmark.{os.getpid()}",
            orchestrator=server.address,
            leaderboard=server.address,
            store=f"folder://{folder}/store",
            folder=folder / "pod",
            layout=layout,
            telemetry=TelemetryConfig(log_level="error", metrics_listen=""),
        )
        with lifeline.hold(folder / "line"):
            arguments = ["nursery", "--set", f"socket={folder}/n", "--set", f"lifeline={folder}/line"]
            nursery = subprocess.Popen(
                [sys.executable, "-m", "agentpod", *arguments],
            )
            while not (folder / "n").exists():
                await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_unix_connection(str(folder / "n"))
            order = {"pod": {**dataclasses.asdict(pod), "lifeline": str(folder / "line")}}
            writer.write(json.dumps(order, default=str).encode() + b"\n")
            await reader.readline()
            await orchestrator.done.wait()
            writer.close()
        await asyncio.to_thread(nursery.wait, 30)
        await server.drain()
    return orchestrator.steps_per_second()


def measure_simulator(environment: str, seconds: float) -> float:
    """Environment steps a second of the simulator alone, on one thread, with random actions drawn beforehand."""
    torch.set_num_threads(1)
    simulator = make(environment, COUNT)
    simulator.reset(0)
    space = simulator.action_space
    if space.kind == "discrete":
        actions = torch.randint(space.n, (HORIZON, COUNT))
    else:
        actions = torch.rand(HORIZON, COUNT, *space.shape) * 2 - 1
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for action in actions:
            simulator.step(action)
        steps += HORIZON * COUNT
    elapsed = time.monotonic() - began
    simulator.close()
    return steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repetition: under a minute")
    options = parser.parse_args()
    repetitions, seconds = (1, 1.5) if options.quick else (3, 4.0)
    for environment, sizes in CASES:
        measured: dict[str, list[float]] = {"fused": [], "separate": [], "simulator": []}
        for _ in range(repetitions):
            measured["simulator"].append(measure_simulator(environment, seconds))
            for layout in ("fused", "separate"):
                measured[layout].append(asyncio.run(measure_pod(environment, sizes, layout, seconds)))
        alone = statistics.median(measured["simulator"])
        for layout in ("fused", "separate"):
            value = statistics.median(measured[layout])
            network = "x".join(map(str, [len(sizes), sizes[0]]))
            line = {
                "benchmark": "training",
                "case": f"ppo/{environment}/{network}/{layout}",
                "metric": "steps_per_second",
                "value": round(value),
                "unit": "1/s",
                "against": "simulator alone, one thread",
                "against_value": round(alone),
                "ratio": round(value / alone, 3),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
