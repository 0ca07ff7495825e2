"""Runs a pod on each plane, and finds out where its worker really computed and what happens when a side is killed.

`plane_trials.launched` does so with pods that a launcher starts.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from agentpod.config import LEADER_ROLE
from agentpod.qualification.bench import Bench
from agentpod.qualification.plane_trials import launched
from agentpod.qualification.plane_trials.cases import (
    CASES,
    OPENED,
    PART,
    RESTART_SECONDS,
    WORKER,
    PlaneCase,
    device_finding,
    kill_finding,
    spec_of,
)
from agentpod.qualification.trial_pod import TrialPod, specification, trial_pod
from podrace.processes.identity import Process
from podrace.qualification.findings import Finding, Grade

START_SECONDS, EXIT_SECONDS = 120.0, 20.0


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


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades each plane."""
    for case in CASES:
        gpus = len(bench.gpus)
        if (gpus and gpus < case.gpus) or (not gpus and not case.scheme_without):
            yield Finding(PART, case.name, Grade.ABSENT, remedy=f"needs {case.gpus} GPU{'s' if case.gpus > 1 else ''}")
            continue
        yield from judge(asyncio.run(measure(bench, case)))
    yield from launched.run(bench)


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: PlaneTrial) -> Iterator[Finding]:
    """Grades the pod of a plane. Pure."""
    right = found.scheme == found.expected_scheme
    measured = f"{found.scheme}, {found.steps_per_second:.0f} steps/s" if found.scheme else found.message
    remedy = "" if right else _remedy(found)
    grade = Grade.PASS if right else Grade.FAIL
    yield Finding(PART, found.name, grade, measured, found.expected_scheme, remedy=remedy)
    if not found.scheme:
        return
    yield device_finding(f"{found.name}, worker's device", found.device, found.expected_device)
    if found.worker_killed:
        yield kill_finding(
            f"{found.name}, worker killed", found.continued_seconds, RESTART_SECONDS, "training continued"
        )
    if found.leader_killed:
        yield kill_finding(f"{found.name}, leader killed", found.exited_seconds, EXIT_SECONDS, "all roles exited")


def _remedy(found: PlaneTrial) -> str:
    remedies = {
        "cuda": "install CuPy for the CUDA of PyTorch; the processes need one process namespace and one /dev/shm",
        "group": "read the messages of NCCL with NCCL_DEBUG=INFO; the roles need a GPU each",
        "shared": "give /dev/shm more memory",
    }
    return remedies.get(found.name, f"read the log with `podrace qualify --part {PART} --debug`")


# --- measuring ---------------------------------------------------------------------------------------------------


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
    roles, started = [Process.find(pid) for pid in pod.pids().values()], time.monotonic()
    pod.kill(LEADER_ROLE)
    # Roles that have exited are reaped by their parent, which then exits itself.
    await pod.until(lambda: pod.exit_code is not None, EXIT_SECONDS)
    gone = pod.exit_code is not None and not any(role.lives for role in roles if role)
    return time.monotonic() - started if gone else None


def _rate(pod: TrialPod) -> float:
    return pod.mesh.reports[-1].steps_per_second if pod.mesh.reports else 0.0
