"""Runs real pods for benchmarks: processes of a fork server, an assignment over gRPC, tensors through a plane.

The orchestrator and the leaderboard that a pod talks to are test doubles that hand out one agent and record its
reports.
"""

import asyncio
import dataclasses
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from google.protobuf.duration_pb2 import Duration

from agentpod.config import PodConfig
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import read_manifest
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.limits.config import NOTHING, Allowed
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.processes import lifeline
from podrace.progress_deadlines import ProgressDeadlines
from podrace.rpc import Server, ServerConfig, Service
from podrace.specification.resolve import parse, resolve
from podrace.telemetry import TelemetryConfig

START_SECONDS = 60.0
END_SECONDS = 30.0
POLL_SECONDS = 0.02
LEASE_SECONDS = 0.4
MEMORY_BYTES = 2**30
"""Memory of a pod: the default of a specification."""
LOG_TAIL_BYTES = 2000
PATIENT = ProgressDeadlines(floor_seconds=300.0)
"""On a machine that also does other work, a role may get no processor for long."""
ISOLATED = "isolated"
"""Layout of a fused pod that has worker and evaluator, which run user code, in a second process."""
ENDLESS_STEPS = 10**12
ORCHESTRATOR = pb.DESCRIPTOR.services_by_name["OrchestratorService"]
UPDATER = leaderboard_pb2.DESCRIPTOR.services_by_name["UpdaterService"]


@dataclasses.dataclass(frozen=True)
class Work:
    """What a pod trains, and for how long."""

    algorithm: str
    environment: str
    count: int
    hyperparameters: Mapping[str, Any]
    seed: int = 1
    seconds: float = 0.0
    """Duration over which a rate is measured; 0: train until the target is reached."""
    warm_steps: int = 0
    """Environment steps before a rate is measured, to warm caches and allocators."""
    target_return: float = 0.0
    every_steps: int = ENDLESS_STEPS
    """Environment steps between two evaluations."""
    limit_steps: int = ENDLESS_STEPS
    """Environment steps after which the training ends."""
    learners: int = 1
    """Number of learners that train the agent together."""
    fusion: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The specification's `fusion`."""
    allow: Allowed = NOTHING
    """What the operator of the pod allows specifications to name."""

    def assignment(self, lease_seconds: float) -> pb.Assignment:
        """Returns the assignment of the pod."""
        steps = self.limit_steps
        spec = resolve(
            parse(
                {
                    "environment": {"id": self.environment, "count": self.count},
                    "algorithms": {self.algorithm: {"hyperparameters": dict(self.hyperparameters)}},
                    "objective": {"environment_steps": steps},
                    "assignment": {"environment_steps": steps},
                    # Every evaluation that is due takes place, unless the previous one is still running.
                    "evaluation": {"every_environment_steps": self.every_steps, "share": 1.0},
                    "fusion": dict(self.fusion),
                },
                source="benchmark",
            )
        )
        agent = leaderboard_pb2.Agent(
            agent_id="benchmark-a0", tournament_id="benchmark", algorithm=self.algorithm, seed=self.seed
        )
        for name, hyperparameter in spec.algorithms[self.algorithm].hyperparameters.items():
            agent.hyperparameters.fields[name].CopyFrom(hyperparameter.value)
        return pb.Assignment(
            assignment_id="benchmark-a0.1",
            tournament_id="benchmark",
            spec=spec,
            lease_epoch=1,
            lease_duration=duration(lease_seconds),
            train=agent,
        )


def duration(seconds: float) -> Duration:
    """Converts seconds to a protobuf Duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


@dataclasses.dataclass(frozen=True)
class Reached:
    """The first policy whose score reached the target."""

    seconds: float
    """Training time until this policy, including making the environments."""
    steps: int
    """Environment steps until this policy."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of one policy of a learning curve."""

    steps: int
    """Environment steps of all learners until this policy."""
    seconds: float
    """Training time until this policy, including making the environments."""
    mean_return: float


class PodFailed(Exception):
    """A pod failed to train."""


class RecordingServicer(pb_grpc.OrchestratorServiceServicer, leaderboard_pb2_grpc.UpdaterServiceServicer):
    """Orchestrator and leaderboard of one pod: hands out one agent, and cancels it when enough was measured."""

    def __init__(self, work: Work, store: str) -> None:
        # A pod reports three times per lease: often enough to time its updates, too rarely to slow them down.
        self._lease_seconds = LEASE_SECONDS
        self._work, self._store = work, open_store(store)
        self._assignment: pb.Assignment | None = work.assignment(self._lease_seconds)
        self._samples: list[tuple[float, int]] = []
        self._cpu_seconds: list[list[float]] = []
        self.pids: list[int] = []
        """Processes of the pod, whose processor time is measured."""
        self._outcome, self._message = pb.OUTCOME_UNSPECIFIED, ""
        self.reached: Reached | None = None
        self.scores: list[Score] = []

    async def AcquireAssignment(self, request: Any, context: Any) -> Any:
        assignment, self._assignment = self._assignment, None
        if assignment:
            return pb.AcquireAssignmentResponse(assignment=assignment)
        return pb.AcquireAssignmentResponse(drain="measured")

    async def RenewAssignment(self, request: Any, context: Any) -> Any:
        steps = request.progress.environment_steps
        last_steps = self._samples[-1][1] if self._samples else self._work.warm_steps - 1
        if steps > last_steps:
            self._samples.append((time.monotonic(), steps))
            self._cpu_seconds.append(list(map(cpu_seconds, self.pids)))
        directive = pb.DIRECTIVE_CANCEL if self._is_enough() else pb.DIRECTIVE_CONTINUE
        return pb.RenewAssignmentResponse(directive=directive, lease_duration=duration(self._lease_seconds))

    async def CompleteAssignment(self, request: Any, context: Any) -> Any:
        self._outcome, self._message = request.outcome, request.message
        return pb.CompleteAssignmentResponse()

    async def PlanEvaluation(self, request: Any, context: Any) -> Any:
        return leaderboard_pb2.PlanEvaluationResponse()

    async def SubmitCandidate(self, request: Any, context: Any) -> Any:
        manifest = read_manifest(self._store, request.checkpoint.manifest_digest)
        score = manifest.evaluation.mean_return
        self.scores.append(Score(manifest.environment_steps, manifest.training_seconds, score))
        if self.reached is None and score >= self._work.target_return:
            self.reached = Reached(manifest.training_seconds, manifest.environment_steps)
        candidate = leaderboard_pb2.Candidate(candidate_id=request.checkpoint.manifest_digest, score=score)
        return leaderboard_pb2.SubmitCandidateResponse(candidate=candidate)

    def _is_enough(self) -> bool:
        if not self._work.seconds:
            return self.reached is not None
        return len(self._samples) > 1 and self._samples[-1][0] - self._samples[0][0] >= self._work.seconds

    def check(self) -> None:
        """Raises PodFailed if the reports do not suffice for the requested measurement."""
        measured = (
            len(self._samples) > 1 if self._work.seconds else self.reached or self._outcome == pb.OUTCOME_FINISHED
        )
        if not measured:
            raise PodFailed(self._message or "the pod exited too early")

    def steps_per_second(self) -> float:
        """Returns the rate between the first and the last report of an update."""
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began)

    def steps_per_cpu_second(self) -> float:
        """Returns the same rate per second of processor time, which other programs of the machine affect less."""
        return self._measured_steps() / sum(self._used_seconds())

    def steps_per_busiest_second(self) -> float:
        """Returns the rate per second of processor time of the process that computes most.

        It is the rate that the pod would reach if each of its processes had a core to itself and none waited.
        """
        return self._measured_steps() / max(self._used_seconds())

    def _measured_steps(self) -> int:
        return self._samples[-1][1] - self._samples[0][1]

    def _used_seconds(self) -> list[float]:
        """Processor time of each process between the first and the last report."""
        return [last - first for first, last in zip(self._cpu_seconds[0], self._cpu_seconds[-1], strict=True)]


class Pods:
    """Runs one pod after the other, all forked by the same fork server, and stops them all on exit.

    with Pods() as pods:
        rate = pods.steps_per_second(Work(..., seconds=4.0), layout="fused", cpus=[0])
    """

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            self._folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="pr", dir="/tmp")))
            self._log = self._folder / "log"
            self._line = self._folder / "line"
            line = resources.enter_context(ExitStack())
            line.enter_context(lifeline.hold(self._line))
            arguments = ["forkserver", "--set", f"socket={self._folder}/n", "--set", f"lifeline={self._line}"]
            with self._log.open("wb") as log:
                forkserver = subprocess.Popen([sys.executable, "-m", "agentpod", *arguments], stdout=log, stderr=log)
            resources.callback(_end, line, forkserver)
            self._socket = resources.enter_context(self._connect(forkserver))
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def _connect(self, forkserver: "subprocess.Popen[bytes]") -> socket.socket:
        path, deadline = self._folder / "n", time.monotonic() + START_SECONDS
        while not path.exists():
            if forkserver.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the fork server did not start; the end of its log:\n{self._tail()}")
            time.sleep(POLL_SECONDS)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        return connection

    def _tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def steps_per_second(self, work: Work, layout: str, cpus: Sequence[int], deadline_seconds: float = 120.0) -> float:
        """Measures the environment steps per second of one pod on these CPUs.

        Raises:
            SystemExit: The pod failed to train.
        """
        return self._run(work, layout, cpus, deadline_seconds).steps_per_second()

    def rates(self, work: Work, layout: str, cpus: Sequence[int]) -> tuple[float, float]:
        """Measures the environment steps of one pod per second, and per second of processor time."""
        notes = self._run(work, layout, cpus, 120.0)
        return notes.steps_per_second(), notes.steps_per_cpu_second()

    def all_rates(self, work: Work, layout: str, cpus: Sequence[int]) -> tuple[float, float, float]:
        """Measures `rates`, and the steps per second of the process that computes most."""
        notes = self._run(work, layout, cpus, 300.0)
        return notes.steps_per_second(), notes.steps_per_cpu_second(), notes.steps_per_busiest_second()

    def time_to_target(
        self, work: Work, layout: str, cpus: Sequence[int], deadline_seconds: float = 600.0
    ) -> Reached | None:
        """Measures how long one pod takes to reach the target; None if its steps end before."""
        return self._run(work, layout, cpus, deadline_seconds).reached

    def curve(self, work: Work, layout: str, cpus: Sequence[int], deadline_seconds: float = 600.0) -> list[Score]:
        """Returns the scores of one pod in the order of its steps; the last one is that of the trained agent."""
        return self._run(work, layout, cpus, deadline_seconds).scores

    def _run(self, work: Work, layout: str, cpus: Sequence[int], deadline_seconds: float) -> RecordingServicer:
        try:
            notes = asyncio.run(self._train(work, layout, cpus, deadline_seconds))
            notes.check()
        except (PodFailed, TimeoutError) as error:
            reason = str(error) or f"it did not exit within {deadline_seconds:g} s"
            raise SystemExit(f"the pod failed: {reason}; the end of its log:\n{self._tail()}") from None
        return notes

    async def _train(self, work: Work, layout: str, cpus: Sequence[int], deadline_seconds: float) -> RecordingServicer:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        notes = RecordingServicer(work, f"folder://{folder}/store")
        services = [
            Service(ORCHESTRATOR, pb_grpc.add_OrchestratorServiceServicer_to_server, notes),
            Service(UPDATER, leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server, notes),
        ]
        server = await Server.start(ServerConfig(listen=f"unix:{folder}/m.sock", grace_seconds=0), services)
        try:
            pod = PodConfig(
                pod_id=f"benchmark.{os.getpid()}.{folder.name}",
                orchestrator=server.address,
                leaderboard=server.address,
                store=f"folder://{folder}/store",
                folder=folder / "pod",
                layout="fused" if layout == ISOLATED else layout,
                isolated=layout == ISOLATED,
                allow=work.allow,
                learners=work.learners,
                cores=len(cpus),
                memory_bytes=MEMORY_BYTES,
                cpus=tuple(cpus),
                lifeline=str(self._line),
                telemetry=TelemetryConfig(log_level="error", metrics_listen=""),
                progress=PATIENT,
            )
            notes.pids = self._start(pod)
            await _gone(notes.pids, deadline_seconds)
        finally:
            await server.drain()
        return notes

    def _start(self, pod: PodConfig) -> list[int]:
        """Makes the fork server fork a pod; returns the process ids of its roles."""
        self._socket.sendall(json.dumps({"pod": dataclasses.asdict(pod)}, default=str).encode() + b"\n")
        answer = json.loads(self._socket.makefile("rb").readline())
        if "error" in answer:
            raise PodFailed(answer["error"])
        file = json.loads((pod.folder / "pod.json").read_text())
        return [role["pid"] for role in file["roles"].values()]


def cpu_seconds(pid: int) -> float:
    """Returns the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _gone(pids: list[int], deadline_seconds: float) -> None:
    """Waits until none of these processes exists."""
    async with asyncio.timeout(deadline_seconds):
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(POLL_SECONDS)


def _end(line: ExitStack, forkserver: "subprocess.Popen[bytes]") -> None:
    """Releases the lifeline of the fork server, which then stops its pods and exits; kills it after a timeout."""
    line.close()
    with suppress(subprocess.TimeoutExpired):
        forkserver.wait(END_SECONDS)
    forkserver.kill()
    forkserver.wait()
