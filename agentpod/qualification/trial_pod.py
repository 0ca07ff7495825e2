"""Runs one pod with one agent in processes of this machine, without an orchestrator and a leaderboard.

This process acts as both, as agentpod.process.retraining does, and records what the pod reports and logs. A pod of
several processes runs as in one container, so that workers and followers are restarted.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentpod.config import LEADER_ROLE, PodConfig, RetrainConfig
from agentpod.process.retraining import Context, SingleAssignmentMesh, lease_duration, pod_config, settings_of
from podrace import rpc
from podrace.checkpoint_store.folder import FolderStore
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.processes import lifeline
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT, AGENT = "qualify", "qualify-a0"
EXIT_SECONDS = 20.0
POLL_SECONDS = 0.05
KEPT_LINES = 5000


@dataclass(frozen=True)
class PodReport:
    """One report of progress."""

    seconds: float
    """Since the pod was started."""
    environment_steps: int
    steps_per_second: float
    plane: str


def specification(**sections: Mapping[str, Any]) -> TournamentSpec:
    """Returns a resolved specification of one agent.

    Args:
        **sections: Its sections, over some that end the training by its budget alone.
    """
    base: dict[str, Any] = {
        "objective": {"environment_steps": 10**12},
        "evaluation": {"episodes": 16},
    }
    return resolve(parse({**base, **sections}, source="qualify"))


def assignment_for(spec: TournamentSpec, *, epoch: int = 1) -> pb.Assignment:
    """Returns the assignment of the only agent; with a higher epoch it continues from its last checkpoint. Pure."""
    (algorithm,) = spec.algorithms
    agent = board_pb.Agent(agent_id=AGENT, tournament_id=TOURNAMENT, number=0, algorithm=algorithm, seed=spec.seed or 1)
    for name, hyperparameter in spec.algorithms[algorithm].hyperparameters.items():
        agent.hyperparameters.fields[name].CopyFrom(hyperparameter.value)
    return pb.Assignment(
        assignment_id=f"{AGENT}.{epoch}",
        tournament_id=TOURNAMENT,
        spec=spec,
        lease_epoch=epoch,
        lease_duration=lease_duration(),
        train=agent,
    )


class TrialMesh(SingleAssignmentMesh):
    """The services that the pod calls; records what it reports."""

    def __init__(self, spec: TournamentSpec, store: FolderStore, wanted_return: float | None) -> None:
        """Waits for the pod.

        Args:
            spec: What the agent trains.
            store: Store that the pod publishes to.
            wanted_return: Mean return that ends the training; None: its budget does.
        """
        budget = spec.assignment.environment_steps
        super().__init__(assignment_for(spec), store, budget)
        self._wanted = wanted_return
        self.reports: list[PodReport] = []
        self.started = time.monotonic()
        self.reached_seconds: float | None = None
        """When the wanted return was reached, since the pod was started."""

    @property
    def latest(self) -> PodReport | None:
        """The latest report; None before the first one."""
        return self.reports[-1] if self.reports else None

    @property
    def trains(self) -> bool:
        """Whether the pod has reported environment steps."""
        return self.steps > 0

    @property
    def steps(self) -> int:
        """Environment steps of the latest report."""
        return self.reports[-1].environment_steps if self.reports else 0

    def hand_out_again(self, spec: TournamentSpec, epoch: int) -> None:
        """Offers the agent to the next pod that asks."""
        self._assignment, self._given = assignment_for(spec, epoch=epoch), False

    async def RenewAssignment(self, request: pb.RenewAssignmentRequest, context: Context) -> pb.RenewAssignmentResponse:
        """Records the progress; see the contract."""
        progress = request.progress
        seconds = time.monotonic() - self.started
        self.reports.append(PodReport(seconds, progress.environment_steps, progress.steps_per_second, progress.plane))
        return await super().RenewAssignment(request, context)

    async def PlanEvaluation(
        self, request: board_pb.PlanEvaluationRequest, context: Context
    ) -> board_pb.PlanEvaluationResponse:
        """Plans no comparison with other agents, because there are none; see the contract."""
        return board_pb.PlanEvaluationResponse()

    async def SubmitCandidate(
        self, request: board_pb.SubmitCandidateRequest, context: Context
    ) -> board_pb.SubmitCandidateResponse:
        """Ends the training when the wanted return is reached; see the contract."""
        response = await super().SubmitCandidate(request, context)
        returned = self.manifests[-1].evaluation.mean_return
        if self._wanted is not None and returned >= self._wanted and self.reached_seconds is None:
            self.reached_seconds, self._reached = time.monotonic() - self.started, True
        return response


@dataclass(frozen=True)
class TrialHost:
    """The part of a pod of several hosts that this machine runs."""

    hosts: int
    index: int
    """Number of this host; 0 has the leader."""
    address: str
    """Of this host, reachable from the others."""
    head: str
    """`host:port` at which the leader serves the other hosts."""

    def of(self, base: PodConfig) -> PodConfig:
        """Returns the configuration of this host's part of a pod.

        All hosts have the same pod id and key, so they know each other.
        """
        gpus = base.gpus[: len(base.gpus) // self.hosts]
        return replace(
            base,
            pod_id=TOURNAMENT,
            hosts=self.hosts,
            host_index=self.index,
            host=self.address,
            head=self.head,
            key=f"{TOURNAMENT} {self.head}",
            gpus=gpus,
            pod_gpus=len(gpus),
            insecure=True,
            unprotected_collectives=True,
        )


@dataclass
class TrialPod:
    """A running pod.

    Attributes:
        config: Its configuration.
        mesh: What it reported.
        log: Its log, one entry for each line.
        exit_code: Of its process, if it has exited.
    """

    config: PodConfig
    mesh: TrialMesh
    log: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    _process: asyncio.subprocess.Process | None = None
    _reader: "asyncio.Task[None] | None" = None

    async def start(self) -> None:
        """Starts the processes of the pod."""
        overrides = [text for key, value in settings_of(self.config).items() for text in ("--set", f"{key}={value}")]
        role = "pod" if len(self.config.roles) > 1 else LEADER_ROLE
        self.exit_code = None
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentpod", role, *overrides, "--set", "telemetry.log_format=json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and len(self.log) < KEPT_LINES:
                    self.log.append(entry)
        self.exit_code = await self._process.wait()

    def pids(self) -> dict[str, int]:
        """Returns the pids of the roles; empty before they were started."""
        try:
            roles = json.loads((self.config.folder / "pod.json").read_text())["roles"]
        except (OSError, ValueError):
            return {} if self._process is None else {LEADER_ROLE: self._process.pid}
        return {role: entry["pid"] for role, entry in roles.items()}

    def kill(self, role: str) -> int:
        """Kills the process of a role without warning and returns its pid."""
        pid = self.pids()[role]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Returns the lines of the log with an event."""
        return [entry for entry in self.log if entry.get("event") == event]

    def warnings(self) -> list[str]:
        """Returns the messages of warnings and errors, oldest first."""
        return [str(entry.get("event")) for entry in self.log if entry.get("level") in ("warning", "error", "critical")]

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits until a condition holds, the pod has exited, or the time has passed; returns whether it holds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition() and self.exit_code is None:
                    await asyncio.sleep(POLL_SECONDS)
        return condition()

    async def end(self) -> None:
        """Ends the pod: asks its leader to stop, and kills what remains."""
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
        done, _ = await asyncio.wait([reader], timeout=EXIT_SECONDS)
        if not done:
            for pid in {process.pid, *self.pids().values()}:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.wait([reader], timeout=EXIT_SECONDS)
            reader.cancel()


@asynccontextmanager
async def trial_pod(
    folder: Path,
    spec: TournamentSpec,
    *,
    plane: str = "auto",
    wanted_return: float | None = None,
    host: TrialHost | None = None,
) -> AsyncIterator[TrialPod]:
    """Runs a pod until the end of the block.

    Args:
        folder: New folder for its files.
        spec: What the agent trains, and the layout of the pod.
        plane: Plane between its roles.
        wanted_return: Mean return that ends the training; None: its budget does.
        host: Part of the pod that this machine runs; None: all of it.
    """
    # Its sockets are for this user alone.
    folder.mkdir(mode=0o700)
    store = FolderStore(folder / "store")
    mesh = TrialMesh(spec, store, wanted_return)  # type: ignore[abstract]
    base = pod_config(spec.pod, RetrainConfig(store="", manifest="", folder=folder), store.uri)
    config = replace(base, pod_id=f"qualify-{os.getpid()}-{folder.name}", plane=plane, folder=folder / "p")
    config = host.of(config) if host else config
    async with AsyncExitStack() as resources:
        server = await rpc.Server.start(
            rpc.ServerConfig(listen=config.orchestrator, grace_seconds=0.0), mesh.services()
        )
        resources.push_async_callback(server.drain)
        resources.enter_context(lifeline.hold(Path(config.lifeline)))
        pod = TrialPod(config, mesh)
        resources.push_async_callback(pod.end)
        await pod.start()
        yield pod
