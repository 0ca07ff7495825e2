"""Measures what authorization costs: calls of pods to services with it and to services without it, in turn.

Both meshes run at the same time on ports of this machine. With authorization, each call has the token that the launcher
got for its pod, and that of its lease; without it, no token is sent, and nothing but the bounds of fields is checked.
Closed loops of a fixed number of callers measure calls per second and latencies; the processor time of the services is
read from the kernel.
"""

import asyncio
import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from podrace import rpc
from podrace.checkpoint_store.folder import FolderStore
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from pools.curves import SimulatedLearner
from pools.mesh import Mesh, services
from pools.pods import Job, Measurements, Pod, token_stubs

LEASE_SECONDS = 900.0
CALLERS = 16
CONNECTIONS = 8
METHODS = ("AcquireAssignment", "RenewAssignment", "SubmitCandidate")
Report = Callable[..., None]
"""Prints one result: case, metric, value, unit, and what it is compared with."""


@dataclass
class Worker:
    """A pod that has work."""

    pod: Pod
    assignment: pb.Assignment
    learner: SimulatedLearner


@dataclass
class Arm:
    """One of the two meshes that are compared."""

    name: str
    mesh: Mesh
    pods: Sequence[Pod]
    notes: Measurements
    workers: list[Worker] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Calls per second of each round, by method."""
    processor_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Processor time of the services for a call in each round, by method."""

    @contextlib.contextmanager
    def round_of(self, method: str) -> Iterator[None]:
        """Measures the calls of one method that the block makes."""
        begin, used, count = time.monotonic(), self._used(), len(self.notes.seconds[method])
        yield
        seconds, calls = time.monotonic() - begin, len(self.notes.seconds[method]) - count
        self.rates[method].append(calls / seconds)
        self.processor_seconds[method].append((self._used() - used) / max(calls, 1))

    def _used(self) -> float:
        return sum(each.running_seconds for each in self.mesh.services.values())


async def compare(
    folder: Path, spec: TournamentSpec, pods: int, rounds: int, seconds: float, report: Report, calls: int = 1000
) -> None:
    """Measures and reports.

    Args:
        folder: Folder of everything that is written.
        spec: The tournament of both meshes.
        pods: Number of pods of each mesh.
        rounds: Number of rounds for each method and mesh.
        seconds: Length of a round of renewals.
        report: Prints one result.
        calls: Most acquisitions, and most submissions, of a round; further pods exist, and call nothing.
    """
    # The files of simulated pods may be lost.
    os.fsync = lambda fd: None
    async with (
        _arm("without", folder / "without", spec, pods) as without,
        _arm("with", folder / "with", spec, pods) as guarded,
    ):
        part = min(pods // rounds, calls)
        for number in range(rounds):
            # In turn, so that other work on the machine concerns both.
            order = (without, guarded) if number % 2 else (guarded, without)
            for arm in order:
                with arm.round_of("AcquireAssignment"):
                    await _in_parallel(_acquisitions(arm, arm.pods[number * part : (number + 1) * part]))
            for arm in order:
                until = time.monotonic() + seconds
                with arm.round_of("RenewAssignment"):
                    await _in_parallel(_renewals(arm, until))
            for arm in order:
                with arm.round_of("SubmitCandidate"):
                    await _in_parallel(_submissions(arm, part))
        for method in METHODS:
            _report(method, without, guarded, report)


@contextlib.asynccontextmanager
async def _arm(name: str, folder: Path, spec: TournamentSpec, count: int) -> AsyncIterator[Arm]:
    folder.mkdir()
    guarded = name == "with"
    async with contextlib.AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(services(folder, LEASE_SECONDS, on_ports=True, guarded=guarded))
        tournament_id = await mesh.create(spec)
        await mesh.wait_for_pods(tournament_id, count)
        channels = [
            (
                await stack.enter_async_context(rpc.connect(mesh.orchestrator.address, pb.DESCRIPTOR)),
                await stack.enter_async_context(rpc.connect(mesh.leaderboard.address, leaderboard_pb2.DESCRIPTOR)),
            )
            for _ in range(CONNECTIONS)
        ]
        store, notes = FolderStore(mesh.store), Measurements()
        job = _job(mesh, tournament_id, count)
        pods = [
            Pod(pod_id, job, notes, store, token_stubs(_token(mesh, pod_id), *channels[number % CONNECTIONS]))
            for number, pod_id in enumerate(f"{tournament_id}-p{number}" for number in range(count))
        ]
        yield Arm(name, mesh, pods, notes)


def _token(mesh: Mesh, pod_id: str) -> str:
    """Returns the token that the launcher got for a pod; empty without authorization."""
    path = mesh.logs / f"{pod_id}.token"
    return path.read_text() if path.exists() else ""


def _job(mesh: Mesh, tournament_id: str, pods: int) -> Job:
    return Job(
        orchestrator=mesh.orchestrator.address,
        leaderboard=mesh.leaderboard.address,
        store=str(mesh.store),
        tournament_id=tournament_id,
        first_pod=0,
        pods=pods,
        connections=CONNECTIONS,
        begin=0.0,
        ramp_seconds=0.0,
        measured_from=0.0,
        until=float("inf"),
        speed=1.0,
        steps_per_second=1000.0,
        rollout_steps=1,
        opening_seconds=0.0,
        spread=False,
        target_return=None,
        curves=[[(0, 0.0), (1e12, 1e6)]],
    )


async def _in_parallel(calls: Iterator[Awaitable[None]]) -> None:
    """Makes calls one after another with each of a number of callers."""

    async def caller() -> None:
        for call in calls:
            await call

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def _acquisitions(arm: Arm, pods: Sequence[Pod]) -> Iterator[Awaitable[None]]:
    async def acquire(pod: Pod) -> None:
        assignment = (await pod.acquire()).assignment
        if assignment.HasField("train"):
            pointer = pod.claim(assignment.train.agent_id, assignment.lease_epoch)
            arm.workers.append(Worker(pod, assignment, pod.learner(assignment.train, pointer)))

    return (acquire(pod) for pod in pods)


def _renewals(arm: Arm, until: float) -> Iterator[Awaitable[None]]:
    async def renew(worker: Worker) -> None:
        await worker.pod.renew(worker.assignment, worker.learner)

    for worker in cycle(arm.workers):
        if time.monotonic() >= until:
            return
        yield renew(worker)


def _submissions(arm: Arm, count: int) -> Iterator[Awaitable[None]]:
    async def submit(worker: Worker) -> None:
        worker.learner.steps += 16
        await worker.pod.submit(worker.assignment, worker.learner)

    return (submit(worker) for worker in islice(cycle(arm.workers), count))


def _report(method: str, without: Arm, guarded: Arm, report: Report) -> None:
    for metric, unit, values in (
        ("calls_per_second", "1/s", lambda arm: statistics.median(arm.rates[method])),
        ("p50", "ms", lambda arm: 1e3 * statistics.median(arm.notes.seconds[method])),
        ("p99", "ms", lambda arm: 1e3 * statistics.quantiles(arm.notes.seconds[method], n=100)[98]),
        (
            "processor_time_of_services",
            "ms",
            lambda arm: 1e3 * statistics.median(arm.processor_seconds[method]),
        ),
    ):
        report(method, metric, values(guarded), unit, "without authorization", values(without))
    ratios = [new / old for new, old in zip(guarded.rates[method], without.rates[method], strict=True)]
    report(method, "median_ratio_of_calls_per_second", statistics.median(ratios), "")
    pairs = zip(guarded.processor_seconds[method], without.processor_seconds[method], strict=True)
    report(method, "median_ratio_of_processor_time", statistics.median(new / old for new, old in pairs), "")
    errors: Mapping[str, int] = {**without.notes.errors, **guarded.notes.errors}
    if errors:
        report(method, f"errors: {dict(errors)}", float(sum(errors.values())), "")
