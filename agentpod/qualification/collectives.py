"""Examines the GPUs of a node together: groups of processes, and pods with several learners."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from agentpod.config import learner_role
from agentpod.qualification.bench import Bench, count
from agentpod.qualification.members import group_trial, judge
from agentpod.qualification.trial_pod import PodReport, TrialHost, TrialPod, specification, trial_pod
from podrace.qualification.findings import Finding, Grade
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PART = "collectives"
EFFICIENCY = 0.6
"""Share of the rate of one learner that each of several must reach."""
STAND_IN = 2
"""Members of a group on processors."""
START_SECONDS, CONTINUE_SECONDS, LATE_SECONDS = 120.0, 90.0, 45.0


@dataclass(frozen=True)
class Scaling:
    """Rates of pods with one and with several learners."""

    learners: int
    alone: float
    """Environment steps per second of one learner."""
    together: float
    message: str = ""
    killed: bool = False
    """Whether the last follower was killed while the pod trained."""
    continued_seconds: float | None = None
    """Time until the pod trained with a new follower; None: it did not."""
    part: str = PART


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades groups and pods of all GPUs; on processors of STAND_IN members."""
    if len(bench.gpus) == 1:
        yield Finding(PART, "group", Grade.ABSENT, remedy="needs two GPUs")
        return
    members = len(bench.gpus) or STAND_IN
    devices = bench.devices if bench.gpus else ("cpu",) * STAND_IN
    elements = 1 << (26 if bench.gpus else 16)
    yield from judge(group_trial(PART, devices, elements))
    alone = asyncio.run(measure(bench, 1)).together
    for learners in sizes(members):
        found = asyncio.run(measure(bench, learners, alone, kill=learners == members))
        yield judge_scaling(found)
        if found.killed:
            yield judge_killed(found)


def sizes(members: int) -> list[int]:
    """Returns the numbers of learners to try: powers of two, and all GPUs. Pure."""
    return sorted({2**power for power in range(1, 4) if 2**power <= members} | {min(members, 8)})


# --- judgement ---------------------------------------------------------------------------------------------------


def judge_scaling(found: Scaling) -> Finding:
    """Grades a pod with several learners by the rate of one. Pure."""
    name = f"fusion of {found.learners} learners"
    part = found.part
    if not found.together or not found.alone:
        remedy = f"read the log with `podrace qualify --part {part} --debug`"
        return Finding(part, name, Grade.FAIL, found.message or "the pod did not train", remedy=remedy)
    share = found.together / found.alone / found.learners
    measured = f"{count(found.together)} steps/s, one learner {count(found.alone)}, efficiency {share:.0%}"
    grade = Grade.PASS if share >= EFFICIENCY else Grade.SLOW
    remedy = "" if grade == Grade.PASS else "raise fusion.every_updates, and give the pod more cores"
    return Finding(part, name, grade, measured, f"efficiency of at least {EFFICIENCY:.0%}", remedy=remedy)


def judge_killed(found: Scaling) -> Finding:
    """Grades what a pod did after one of its followers was killed. Pure."""
    name, expected = f"{found.learners} learners, one killed", f"trains with a new one within {CONTINUE_SECONDS:.0f} s"
    if found.continued_seconds is None:
        remedy = f"read the log with `podrace qualify --part {found.part} --debug`"
        return Finding(found.part, name, Grade.FAIL, "not: trains with a new one", expected, remedy=remedy)
    return Finding(found.part, name, Grade.PASS, f"after {found.continued_seconds:.1f} s", expected)


# --- measuring ---------------------------------------------------------------------------------------------------


async def measure(
    bench: Bench, learners: int, alone: float = 0.0, *, kill: bool = False, host: TrialHost | None = None
) -> Scaling:
    """Measures the environment steps per second of a fused pod, in which each learner is a process with its own GPU.

    Args:
        bench: The GPUs.
        learners: Number of learners, over all hosts.
        alone: Rate of a pod with one learner.
        kill: Whether to kill the last follower afterwards.
        host: Part of the pod that this machine runs; None: all of it.
    """
    spec = specification_of(bench, learners, host.hosts if host else 1)
    async with trial_pod(bench.folder / f"learners-{learners}", spec, host=host) as pod:
        mesh = pod.mesh
        await pod.until(lambda: mesh.trains or mesh.ended, START_SECONDS)
        first = mesh.latest or PodReport(0.0, 0, 0.0, "")
        await pod.until(lambda: mesh.ended, _measured_seconds(bench))
        # On a busy machine the next report that counts further steps is late.
        await pod.until(lambda: mesh.ended or mesh.steps > first.environment_steps, LATE_SECONDS)
        last = mesh.latest or first
        message = mesh.message or "; ".join(pod.warnings()[-1:]) or "the pod did not train in time"
        if mesh.steps <= first.environment_steps:
            return Scaling(learners, alone, 0.0, message)
        rate = (last.environment_steps - first.environment_steps) / (last.seconds - first.seconds)
        continued = await kill_follower(pod, learners - 1) if kill else None
    return Scaling(learners, alone, rate, message, kill, continued)


def _measured_seconds(bench: Bench) -> float:
    """Returns how long a pod is measured; without GPUs it only shows that it trains."""
    if not bench.gpus:
        return 1.0
    return 5.0 if bench.quick else 15.0


def specification_of(bench: Bench, learners: int, hosts: int = 1) -> TournamentSpec:
    """Returns the specification of a pod with some learners: PPO on CartPole, parameters averaged every 4 updates."""
    lanes = 2048 if bench.gpus else 16
    return specification(
        environment={"id": "cartpole", "count": lanes},
        algorithms={"ppo": {"hyperparameters": {"horizon": 32, "minibatch_size": 8 * lanes}}},
        assignment={"environment_steps": 10**12},
        evaluation={"episodes": 8, "every_environment_steps": 10**11},
        fusion={"mode": "average", "every_updates": 4} if learners > 1 else {},
        pod={
            "layout": "fused",
            "cores": 2 * learners,
            "gpus": learners if bench.gpus else 0,
            "learners": learners,
            "hosts": hosts,
        },
    )


async def kill_follower(pod: TrialPod, learner: int) -> float | None:
    """Kills a follower, and returns the seconds until the pod trains with a new one; None if it does not."""
    joined = len(pod.logged("fusion round committed"))
    pod.kill(learner_role(learner))
    started = time.monotonic()
    # A round logs this when its members change: first without the follower, then with the new one.
    again = await pod.until(lambda: _sizes(pod, joined)[-1:] == [learner + 1], CONTINUE_SECONDS)
    return time.monotonic() - started if again else None


def _sizes(pod: TrialPod, start: int) -> list[int]:
    """Returns the numbers of learners in the rounds that were logged from a line on."""
    return [int(entry["learners"]) for entry in pod.logged("fusion round committed")[start:]]
