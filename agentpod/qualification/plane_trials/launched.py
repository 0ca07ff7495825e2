"""Runs a pod on each plane by the launcher of an orchestrator, as a short tournament, and kills its roles."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentpod.config import LEADER_ROLE
from agentpod.qualification.bench import Bench
from agentpod.qualification.plane_trials.cases import (
    CASES,
    PART,
    RESTART_SECONDS,
    WORKER,
    PlaneCase,
    device_finding,
    kill_finding,
    spec_of,
)
from agentpod.qualification.plane_trials.reach import ReachedPod, device_of, reached
from agentpod.qualification.trial_pod import specification
from podrace.client.calls.tournaments import END_STATES
from podrace.client.client import Client
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import Pod
from podrace.qualification.findings import Finding, Grade

LAUNCH_SECONDS = 180.0
"""A launcher may have to pull an image, or to wait for a node."""
EXIT_SECONDS = 60.0
"""Time in which a pod must exit after its tournament was cancelled."""
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class LaunchedTrial:
    """What a pod did that a launcher started."""

    name: str
    scheme: str
    """The plane in use; empty: the pod did not train."""
    expected_scheme: str
    steps_per_second: float = 0.0
    message: str = ""
    """The last event, if the pod did not train."""
    refused: str = ""
    """Why the orchestrator refused the tournament; empty: it did not."""
    launcher: str = ""
    """Launcher through which the pod was reached; empty: it was not, and nothing below is known."""
    device: str = ""
    """Device that the worker logged."""
    expected_device: str = "cpu"
    """Type of the device that it must compute on."""
    separate: bool = False
    """Whether the worker is a separate process, which was killed."""
    restarts_workers: bool = True
    """Whether a killed worker must be started again in the same pod; otherwise another pod must train."""
    continued_seconds: float | None = None
    """Time until the training continued after the worker was killed; None: it did not, or was not tried."""
    replaced_seconds: float | None = None
    """Time until another pod trained after the leader was killed; None: none did."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades each plane through the launcher of an orchestrator."""
    if not bench.orchestrator:
        remedy = "name the orchestrator of a mesh with the launcher docker or kubernetes by --orchestrator HOST:PORT"
        yield Finding(PART, "through the launcher in use", Grade.ABSENT, remedy=remedy)
        return
    gpus = len(bench.gpus)
    for case in CASES:
        if case.scheme_without if not gpus else gpus >= case.gpus:
            yield from judge(asyncio.run(measure(case, gpus, bench.orchestrator)))
        else:
            remedy = f"needs {case.gpus} GPU{'s' if case.gpus > 1 else ''}"
            yield Finding(PART, f"{case.name}, through the launcher", Grade.ABSENT, remedy=remedy)


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: LaunchedTrial) -> Iterator[Finding]:
    """Grades a pod that a launcher started. Pure."""
    name = f"{found.name}, through the launcher {found.launcher}".rstrip()
    if found.refused:
        remedy = "this launcher cannot do it"
        yield Finding(PART, name, Grade.ABSENT, found.refused, found.expected_scheme, remedy=remedy)
        return
    if found.scheme != found.expected_scheme:
        remedy = "read the pod's log; docs/cluster.md lists what each plane needs in each layout"
        yield Finding(PART, name, Grade.FAIL, found.scheme or found.message, found.expected_scheme, remedy=remedy)
        return
    measured = f"{found.scheme}, {found.steps_per_second:.0f} steps/s"
    yield Finding(PART, name, Grade.PASS, measured, found.expected_scheme)
    if not found.launcher:
        remedy = "run it where the pod can be reached: on its host, or with DOCKER_HOST or KUBECONFIG of its launcher"
        yield Finding(
            PART, f"{name}: device, kills", Grade.ABSENT, "the pod cannot be reached from here", remedy=remedy
        )
        return
    yield device_finding(f"{name}: worker's device", found.device, found.expected_device)
    if found.separate:
        again = (
            ("training continued", RESTART_SECONDS)
            if found.restarts_workers
            else ("another pod trained", LAUNCH_SECONDS)
        )
        yield kill_finding(f"{name}: worker killed", found.continued_seconds, again[1], again[0])
    yield kill_finding(f"{name}: leader killed", found.replaced_seconds, LAUNCH_SECONDS, "another pod trained")


# --- measuring ---------------------------------------------------------------------------------------------------


async def measure(case: PlaneCase, gpus: int, orchestrator: str) -> LaunchedTrial:
    """Runs a tournament of one pod on a plane until it trains, kills its roles, and deletes it.

    Args:
        case: The plane.
        gpus: GPUs that a pod can have.
        orchestrator: Address of the orchestrator.

    Raises:
        PodraceError: The orchestrator does not answer.
    """
    expected = case.scheme if gpus else case.scheme_without
    seconds = 3 * LAUNCH_SECONDS
    limits = {"objective": {"wall_clock_duration": f"{seconds:.0f}s"}, "pool": {"maximum_pods": 1}}
    spec = specification(**{"name": f"qualify-{case.name}", **spec_of(case, gpus), **limits})
    async with Client(orchestrator) as client:
        try:
            tournament = await client.create_tournament(spec)
        except (InvalidArgument, FailedPrecondition) as error:
            return LaunchedTrial(case.name, "", expected, refused=error.message)
        name = tournament.tournament_id
        try:
            pod = await _until_it_trains(client, name)
            events = await client.list_events(name)
            seen = await _killed(client, case, pod) if pod else {}
        finally:
            with suppress(FailedPrecondition):
                await client.cancel_tournament(name, "examined by podrace qualify")
            await _deleted(client, name)
    message = events[-1].message if events else "no event was recorded"
    if pod is None:
        return LaunchedTrial(case.name, "", expected, message=message)
    seen |= {"expected_device": "cuda" if case.on_gpu and gpus else "cpu"}
    return LaunchedTrial(case.name, pod.progress.plane, expected, pod.progress.steps_per_second, **seen)


async def _killed(client: Client, case: PlaneCase, pod: Pod) -> dict[str, Any]:
    """Returns what was observed of the roles of a pod and of their end; nothing if they cannot be reached from here."""
    there = await asyncio.to_thread(reached, pod.pod_id)
    if there is None:
        return {}
    seen: dict[str, Any] = {
        "launcher": there.launcher,
        "device": device_of(await asyncio.to_thread(there.log)),
        "separate": case.layout == "separate",
        "restarts_workers": there.restarts_workers,
    }
    current: Pod | None = pod
    if seen["separate"]:
        started = time.monotonic()
        current = await _killed_worker(client, there, pod)
        seen["continued_seconds"] = time.monotonic() - started if current else None
    there = await asyncio.to_thread(reached, current.pod_id) if current else None
    if current and there:
        seen["replaced_seconds"] = await _killed_leader(client, there, current)
    return seen


async def _killed_leader(client: Client, there: ReachedPod, pod: Pod) -> float | None:
    """Kills the leader of a pod, and returns the seconds until another one trains; None if none does in time."""
    before = await asyncio.to_thread(there.leader)
    await asyncio.to_thread(there.kill, LEADER_ROLE)
    started = time.monotonic()
    # A pod of the same id may follow. At first, the orchestrator reports the progress of the previous pod.
    (last,) = [each for each in await client.list_pods(pod.tournament_id) if each.pod_id == pod.pod_id] or [pod]

    def another(other: Pod) -> bool:
        if other.pod_id != pod.pod_id:
            return True
        again = reached(other.pod_id)
        gone = again is None or again.leader() in (None, 0, before)
        return not gone and bool(other.progress != last.progress)

    trains = await _until_it_trains(client, pod.tournament_id, wanted=another)
    return time.monotonic() - started if trains else None


async def _killed_worker(client: Client, there: ReachedPod, pod: Pod) -> Pod | None:
    """Kills the worker of a pod, and returns the pod that trains again; None if none does in time."""
    before = await asyncio.to_thread(there.worker)
    await asyncio.to_thread(there.kill, WORKER)

    def continues(other: Pod) -> bool:
        more = other.progress.environment_steps > pod.progress.environment_steps
        return other.pod_id == pod.pod_id and more and there.worker() not in (None, 0, before)

    if there.restarts_workers:
        return await _until_it_trains(client, pod.tournament_id, RESTART_SECONDS, continues)
    return await _until_it_trains(client, pod.tournament_id, wanted=lambda other: other.pod_id != pod.pod_id)


async def _until_it_trains(
    client: Client,
    tournament_id: str,
    seconds: float = LAUNCH_SECONDS,
    wanted: Callable[[Pod], bool] = lambda pod: True,
) -> Pod | None:
    """Returns a wanted pod of the tournament that trains; None if there is none before it ends, or in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pod in await client.list_pods(tournament_id):
            trains = pod.progress.plane and pod.progress.steps_per_second > 0
            if trains and await asyncio.to_thread(wanted, pod):
                return pod
        if (await client.get_tournament(tournament_id)).state in END_STATES:
            return None
        await asyncio.sleep(POLL_SECONDS)
    return None


async def _deleted(client: Client, tournament_id: str) -> None:
    """Deletes a tournament whose pods are exiting."""
    deadline = time.monotonic() + EXIT_SECONDS
    while True:
        try:
            return await client.delete_tournament(tournament_id)
        except FailedPrecondition:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)
