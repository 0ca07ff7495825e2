"""Examines the GPUs of a node together: groups of processes, and pods with several learners."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from agentpod.qualification.bench import Bench, count
from agentpod.qualification.members import group_trial, judge
from agentpod.qualification.trial_pod import specification, trial_pod
from podrace.qualification.findings import Finding, Grade

PART = "collectives"
EFFICIENCY = 0.6
"""Share of the rate of one learner that each of several must reach."""
STAND_IN = 2
"""Members of a group on processors."""


@dataclass(frozen=True)
class Scaling:
    """Rates of pods with one and with several learners."""

    learners: int
    alone: float
    """Environment steps per second of one learner."""
    together: float
    message: str = ""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades groups and pods of all GPUs; on processors of STAND_IN members."""
    if len(bench.gpus) == 1:
        yield Finding(PART, "group", Grade.ABSENT, mend="needs two GPUs")
        return
    members = len(bench.gpus) or STAND_IN
    devices = bench.devices if bench.gpus else ("cpu",) * STAND_IN
    elements = 1 << (26 if bench.gpus else 16)
    yield from judge(group_trial(PART, devices, elements))
    alone = asyncio.run(pod_rate(bench, 1))
    for learners in sizes(members):
        rate, message = asyncio.run(pod_rate(bench, learners))
        yield judge_scaling(Scaling(learners, alone[0], rate, message or alone[1]))


def sizes(members: int) -> list[int]:
    """Returns the numbers of learners to try: powers of two, and all GPUs. Pure."""
    return sorted({2**power for power in range(1, 4) if 2**power <= members} | {min(members, 8)})


# --- judgement ---------------------------------------------------------------------------------------------------


def judge_scaling(found: Scaling) -> Finding:
    """Grades a pod with several learners by the rate of one. Pure."""
    name = f"fusion of {found.learners} learners"
    if not found.together or not found.alone:
        mend = f"read the log with `podrace qualify --part {PART} --debug`"
        return Finding(PART, name, Grade.FAIL, found.message or "the pod did not train", mend=mend)
    share = found.together / found.alone / found.learners
    measured = f"{count(found.together)} steps/s, one learner {count(found.alone)}, efficiency {share:.0%}"
    grade = Grade.PASS if share >= EFFICIENCY else Grade.SLOW
    mend = "" if grade == Grade.PASS else "raise fusion.every_updates, and give the pod more cores"
    return Finding(PART, name, grade, measured, f"efficiency of at least {EFFICIENCY:.0%}", mend=mend)


# --- measuring ---------------------------------------------------------------------------------------------------


async def pod_rate(bench: Bench, learners: int) -> tuple[float, str]:
    """Returns the environment steps per second of a pod with some learners, and why there are none."""
    lanes = 2048 if bench.gpus else 16
    gpus = learners if bench.gpus else 0
    spec = specification(
        environment={"id": "cartpole", "count": lanes},
        algorithms={"ppo": {"hyperparameters": {"horizon": 32, "minibatch_size": 8 * lanes}}},
        assignment={"environment_steps": 10**12},
        evaluation={"episodes": 8, "every_environment_steps": 10**11},
        fusion={"mode": "average", "every_updates": 4} if learners > 1 else {},
        pod={"layout": "separate", "cores": 2 * learners, "gpus": gpus, "learners": learners},
    )
    async with trial_pod(bench.folder / f"learners-{learners}", spec) as pod:
        mesh = pod.mesh
        await pod.until(lambda: mesh.trains or mesh.ended, 120.0)
        first = mesh.latest
        await pod.until(lambda: mesh.ended, 5.0 if bench.quick or not bench.gpus else 15.0)
        last = mesh.latest
        message = mesh.message or "; ".join(pod.warnings()[-1:])
    if first is None or last is None or last.seconds <= first.seconds:
        return 0.0, message or "the pod did not train in time"
    return (last.environment_steps - first.environment_steps) / (last.seconds - first.seconds), message
