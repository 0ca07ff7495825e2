"""Runs a pod on each plane, and finds out where its worker really computed and what happens when a side is killed.

With the address of an orchestrator, pods on each plane are also started by its launcher, as short tournaments.
"""

import asyncio
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentpod.config import LEADER_ROLE
from agentpod.liveness.role_processes import POD_FILE, find_process
from agentpod.qualification.bench import Bench
from agentpod.qualification.trial_pod import TrialPod, specification, trial_pod
from podrace.client.calls.tournaments import END_STATES
from podrace.client.client import Client
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import Pod
from podrace.qualification.findings import Finding, Grade

PART = "planes"
START_SECONDS, RESTART_SECONDS, EXIT_SECONDS = 120.0, 60.0, 20.0
LAUNCH_SECONDS = 180.0
"""A launcher may have to pull an image, or to wait for a node."""
POLL_SECONDS = 1.0
WORKER = "worker-0"
OPENED = "environments open"
"""Event of a worker's log with its device."""
LOGGED_DEVICE = re.compile(r"\bdevice(?:=|\": ?\")([\w:]+)")
"""The device in a line of a log, for terminals or in JSON."""


@dataclass(frozen=True)
class PlaneCase:
    """One way to connect the roles of a pod."""

    name: str
    layout: str
    plane: str
    """Value of `pod.plane`."""
    scheme: str
    """Plane that must be used, with a GPU."""
    scheme_without: str
    """Plane that is used without one; empty: the case needs a GPU."""
    gpus: int
    on_gpu: bool
    """Whether the worker must compute on a GPU."""


CASES = (
    PlaneCase("memory", "fused", "auto", "gpu-memory", "memory", 1, True),
    PlaneCase("cuda", "separate", "cuda", "cuda", "", 1, True),
    PlaneCase("group", "separate", "group", "group", "group", 2, True),
    PlaneCase("shared", "separate", "shared", "shared", "shared", 1, False),
    PlaneCase("grpc", "separate", "grpc", "grpc", "grpc", 1, False),
)


@dataclass(frozen=True)
class PlaneTrial:
    """What a pod did."""

    name: str
    scheme: str
    """The plane in use; empty: the pod did not train."""
    expected_scheme: str
    device: str
    """Device that the worker logged."""
    expected_device: str
    """Type of the device that it must compute on."""
    steps_per_second: float
    message: str = ""
    """Why the pod did not train."""
    continued_seconds: float | None = None
    """Time until the training continued after the worker was killed; None: it did not, or was not tried."""
    worker_killed: bool = False
    exited_seconds: float | None = None
    """Time until all roles had exited after the leader was killed; None: they did not, or were not tried."""
    leader_killed: bool = False


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
    here: bool = False
    """Whether the processes of the pod are on this host (launcher `process`); otherwise nothing below is known."""
    device: str = ""
    """Device that the worker logged."""
    expected_device: str = "cpu"
    """Type of the device that it must compute on."""
    separate: bool = False
    """Whether the worker is a separate process, which was killed."""
    continued_seconds: float | None = None
    """Time until the training continued after the worker was killed; None: it did not, or was not tried."""
    replaced_seconds: float | None = None
    """Time until another pod trained after the leader was killed; None: none did."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades each plane."""
    for case in CASES:
        gpus = len(bench.gpus)
        if (gpus and gpus < case.gpus) or (not gpus and not case.scheme_without):
            yield Finding(PART, case.name, Grade.ABSENT, mend=f"needs {case.gpus} GPU{'s' if case.gpus > 1 else ''}")
            continue
        yield from judge(asyncio.run(measure(bench, case)))
    yield from launched(bench)


def launched(bench: Bench) -> Iterator[Finding]:
    """Measures and grades each plane through the launcher of an orchestrator."""
    if not bench.orchestrator:
        mend = "name the orchestrator of a mesh with the launcher docker or kubernetes by --orchestrator HOST:PORT"
        yield Finding(PART, "through the launcher in use", Grade.ABSENT, mend=mend)
        return
    gpus = len(bench.gpus)
    for case in CASES:
        if case.scheme_without if not gpus else gpus >= case.gpus:
            yield from judge_launched(asyncio.run(measure_launched(case, gpus, bench.orchestrator)))
        else:
            mend = f"needs {case.gpus} GPU{'s' if case.gpus > 1 else ''}"
            yield Finding(PART, f"{case.name}, through the launcher", Grade.ABSENT, mend=mend)


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: PlaneTrial) -> Iterator[Finding]:
    """Grades the pod of a plane. Pure."""
    right = found.scheme == found.expected_scheme
    measured = f"{found.scheme}, {found.steps_per_second:.0f} steps/s" if found.scheme else found.message
    mend = "" if right else _mend(found)
    grade = Grade.PASS if right else Grade.FAIL
    yield Finding(PART, found.name, grade, measured, found.expected_scheme, mend=mend)
    if not found.scheme:
        return
    yield _device(f"{found.name}, worker's device", found.device, found.expected_device)
    if found.worker_killed:
        yield _after(f"{found.name}, worker killed", found.continued_seconds, RESTART_SECONDS, "training continued")
    if found.leader_killed:
        yield _after(f"{found.name}, leader killed", found.exited_seconds, EXIT_SECONDS, "all roles exited")


def judge_launched(found: LaunchedTrial) -> Iterator[Finding]:
    """Grades a pod that a launcher started. Pure."""
    name = f"{found.name}, through the launcher"
    if found.refused:
        mend = "this launcher cannot do it"
        yield Finding(PART, name, Grade.ABSENT, found.refused, found.expected_scheme, mend=mend)
        return
    if found.scheme != found.expected_scheme:
        mend = "read the pod's log; docs/cluster.md lists what each plane needs in each layout"
        yield Finding(PART, name, Grade.FAIL, found.scheme or found.message, found.expected_scheme, mend=mend)
        return
    measured = f"{found.scheme}, {found.steps_per_second:.0f} steps/s"
    yield Finding(PART, name, Grade.PASS, measured, found.expected_scheme)
    if not found.here:
        mend = "roles are read and killed only on this host, with the launcher process"
        yield Finding(PART, f"{name}: device, kills", Grade.ABSENT, "no process of the pod is here", mend=mend)
        return
    yield _device(f"{name}: worker's device", found.device, found.expected_device)
    if found.separate:
        yield _after(f"{name}: worker killed", found.continued_seconds, RESTART_SECONDS, "training continued")
    yield _after(f"{name}: leader killed", found.replaced_seconds, LAUNCH_SECONDS, "another pod trained")


def _device(name: str, device: str, expected: str) -> Finding:
    there = device.partition(":")[0] == expected
    mend = "" if there else "report this line: the simulator steps where it was not meant to"
    return Finding(PART, name, Grade.PASS if there else Grade.FAIL, device or "not logged", expected, mend=mend)


def _after(name: str, seconds: float | None, limit: float, what: str) -> Finding:
    expected = f"{what} within {limit:.0f} s"
    if seconds is None:
        mend = f"read the log with `podrace qualify --part {PART} --debug`"
        return Finding(PART, name, Grade.FAIL, f"not: {what}", expected, mend=mend)
    return Finding(PART, name, Grade.PASS, f"{what} after {seconds:.1f} s", expected)


def _mend(found: PlaneTrial) -> str:
    mends = {
        "cuda": "install CuPy for the CUDA of PyTorch; the processes need one process namespace and one /dev/shm",
        "group": "read the messages of NCCL with NCCL_DEBUG=INFO; the roles need a GPU each",
        "shared": "give /dev/shm more memory",
    }
    return mends.get(found.name, f"read the log with `podrace qualify --part {PART} --debug`")


# --- measuring ---------------------------------------------------------------------------------------------------


def spec_of(case: PlaneCase, gpus: int) -> Mapping[str, Any]:
    """Returns the sections of the specification of a case."""
    pod: dict[str, Any] = {"layout": case.layout, "cores": 2, "gpus": min(gpus, case.gpus)}
    return {
        "environment": {"id": "cartpole", "count": 64},
        "algorithms": {"ppo": {"hyperparameters": {"horizon": 32, "minibatch_size": 512, "hidden_sizes": [32]}}},
        "assignment": {"environment_steps": 10**9},
        "evaluation": {"episodes": 4, "every_environment_steps": 10**8},
        "pod": pod if case.plane == "auto" else pod | {"plane": case.plane},
    }


async def measure(bench: Bench, case: PlaneCase) -> PlaneTrial:
    """Runs a pod on a plane, and kills its worker and then its leader if they are separate processes."""
    gpus, separate = len(bench.gpus), case.layout == "separate"
    spec = specification(**spec_of(case, gpus))
    async with trial_pod(bench.folder / case.name, spec, plane=case.plane) as pod:
        trains = await pod.until(lambda: _rate(pod) > 0 or pod.mesh.ended, START_SECONDS) and not pod.mesh.ended
        opened = pod.logged(OPENED)
        found = PlaneTrial(
            name=case.name,
            scheme=pod.mesh.reports[-1].plane if trains else "",
            expected_scheme=case.scheme if gpus else case.scheme_without,
            device=str(opened[0]["device"]) if opened else "",
            expected_device="cuda" if case.on_gpu and gpus else "cpu",
            steps_per_second=_rate(pod),
            message=pod.mesh.message or next(iter(reversed(pod.warnings())), "the pod did not train in time"),
            worker_killed=separate,
            leader_killed=separate,
        )
        if not trains or not separate:
            return found
        continued = await kill_worker(pod)
        exited = await kill_leader(pod)
    return PlaneTrial(**{**vars(found), "continued_seconds": continued, "exited_seconds": exited})


async def measure_launched(case: PlaneCase, gpus: int, orchestrator: str) -> LaunchedTrial:
    """Runs a tournament of one pod on a plane until it trains, and deletes it.

    Args:
        case: The plane.
        gpus: GPUs that a pod can have.
        orchestrator: Address of the orchestrator.

    Raises:
        PodraceError: The orchestrator does not answer.
    """
    expected = case.scheme if gpus else case.scheme_without
    seconds = 2 * LAUNCH_SECONDS + RESTART_SECONDS
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
            seen = await _kill_here(client, case, pod) if pod else {}
        finally:
            with suppress(FailedPrecondition):
                await client.cancel_tournament(name, "examined by podrace qualify")
            await _deleted(client, name)
    message = events[-1].message if events else "no event was recorded"
    if pod is None:
        return LaunchedTrial(case.name, "", expected, message=message)
    device = "cuda" if case.on_gpu and gpus else "cpu"
    seen |= {"expected_device": device}
    return LaunchedTrial(case.name, pod.progress.plane, expected, pod.progress.steps_per_second, **seen)


async def _kill_here(client: Client, case: PlaneCase, pod: Pod) -> dict[str, Any]:
    """Returns what is seen of a pod's processes on this host, and of their end; nothing if they are not here."""
    folder = pod_folder(pod.pod_id, Path(tempfile.gettempdir()))
    leader = find_process(folder, LEADER_ROLE) if folder else None
    if folder is None or leader is None:
        return {}
    seen: dict[str, Any] = {"here": True, "device": logged_device(folder), "separate": case.layout == "separate"}
    if worker := find_process(folder, WORKER) if seen["separate"] else None:
        worker.signal(signal.SIGKILL)
        started = time.monotonic()

        def continues(other: Pod) -> bool:
            again = find_process(folder, WORKER)
            more = other.progress.environment_steps > pod.progress.environment_steps
            return other.pod_id == pod.pod_id and more and again not in (None, worker)

        if await _until_it_trains(client, pod.tournament_id, RESTART_SECONDS, continues):
            seen["continued_seconds"] = time.monotonic() - started
    leader.signal(signal.SIGKILL)
    started = time.monotonic()
    if await _until_it_trains(client, pod.tournament_id, wanted=lambda other: other.pod_id != pod.pod_id):
        seen["replaced_seconds"] = time.monotonic() - started
    return seen


def pod_folder(pod_id: str, temporary: Path) -> Path | None:
    """Returns the folder of a pod that the launcher `process` of this user started here; None if there is none."""
    for path in temporary.glob(f"podrace-*/pods/{pod_id}/{POD_FILE}"):
        if path.stat().st_uid == os.getuid():
            return path.parent
    return None


def logged_device(folder: Path) -> str:
    """Returns the device that the worker of a pod logged last; empty if it logged none."""
    try:
        log = Path(json.loads((folder / POD_FILE).read_text())["log_path"]).read_text()
    except (OSError, ValueError, KeyError):
        return ""
    found = [LOGGED_DEVICE.search(line) for line in log.splitlines() if OPENED in line]
    return next((match[1] for match in reversed(found) if match), "")


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
            if pod.progress.plane and pod.progress.steps_per_second > 0 and wanted(pod):
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


async def kill_worker(pod: TrialPod) -> float | None:
    """Kills the worker, and returns the seconds until the pod trains with a new one; None if it does not."""
    opened = len(pod.logged(OPENED))
    pod.kill(WORKER)
    started = time.monotonic()
    again = await pod.until(lambda: len(pod.logged(OPENED)) > opened, RESTART_SECONDS)
    # The next report may still count steps of the worker that was killed; the one after it does not.
    count = len(pod.mesh.reports) + 1
    await pod.until(lambda: len(pod.mesh.reports) > count, RESTART_SECONDS)
    before = pod.mesh.reports[-1].environment_steps
    trains = again and await pod.until(lambda: pod.mesh.reports[-1].environment_steps > before, RESTART_SECONDS)
    return time.monotonic() - started if trains else None


async def kill_leader(pod: TrialPod) -> float | None:
    """Kills the leader, and returns the seconds until no role runs; None if one does."""
    roles, started = pod.pids(), time.monotonic()
    pod.kill(LEADER_ROLE)
    # Roles that have exited are reaped by their parent, which then exits itself.
    await pod.until(lambda: pod.exit_code is not None, EXIT_SECONDS)
    gone = pod.exit_code is not None and not any(map(_runs, roles.values()))
    return time.monotonic() - started if gone else None


def _rate(pod: TrialPod) -> float:
    return pod.mesh.reports[-1].steps_per_second if pod.mesh.reports else 0.0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
