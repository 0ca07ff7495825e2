"""Trains agents to a stated return in a stated time.

The returns and times are expectations: they have not been measured on a GPU yet, so an agent that learns but is late is
SLOW. Published: Brax trains its Ant to a return of 6,000 in about 100 s on one GPU, after 400 s of compilation.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentpod.qualification.bench import Bench
from agentpod.qualification.trial_pod import specification, trial_pod
from podrace.qualification.findings import Finding, Grade

PART = "learning"
SHARE_OF_WAY = 0.2
"""An agent that makes less of the way from its first score to the wanted one does not learn."""


@dataclass(frozen=True)
class LearningTask:
    """A task with the return to reach."""

    name: str
    environment: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    """Of PPO."""
    wanted: float
    seconds: float
    """Time limit, with the start of the pod."""
    every_environment_steps: int
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    quick: bool = True
    """Whether it is part of a quick qualification."""


WIDE = {"hidden_sizes": [256, 128, 64], "activation": "elu", "desired_kl": 0.01, "horizon": 32, "minibatch_size": 16384}
CARTPOLE_SETTINGS = {"horizon": 32, "minibatch_size": 2048, "learning_rate": 1e-3, "gae_lambda": 0.8}
TASKS = (
    LearningTask("cartpole", {"id": "cartpole", "count": 256}, CARTPOLE_SETTINGS, 475.0, 60.0, 50_000),
    LearningTask(
        "stocks",
        {"id": "stocks", "count": 2048},
        {"horizon": 64, "minibatch_size": 16384},
        0.0,
        90.0,
        1_000_000,
        {"options": {"split": "validation", "episode_days": 63}},
    ),
    LearningTask(
        "warp:ant",
        {"id": "warp:ant", "count": 4096},
        WIDE,
        2000.0,
        300.0,
        10_000_000,
        reference="Brax Ant: 6,000 in about 100 s on one GPU, after 400 s of compilation",
        quick=False,
    ),
)
STAND_IN = LearningTask(
    "cartpole",
    {"id": "cartpole", "count": 16},
    {"horizon": 64, "minibatch_size": 256, "learning_rate": 2e-3, "gae_lambda": 0.8, "hidden_sizes": [32]},
    475.0,
    120.0,
    8_000,
)
"""Takes the place of the tasks on processors."""


@dataclass(frozen=True)
class Learned:
    """How far an agent came."""

    task: LearningTask
    device: str
    scores: tuple[float, ...]
    """Mean returns of its evaluations, in order."""
    environment_steps: int
    reached_seconds: float | None
    """When it reached the wanted return; None: it did not."""
    message: str = ""


def run(bench: Bench) -> Iterator[Finding]:
    """Trains and grades each task."""
    tasks = [task for task in TASKS if task.quick or not bench.quick] if bench.gpus else [STAND_IN]
    for task in tasks:
        yield judge(asyncio.run(measure(bench, task)))


def judge(found: Learned) -> Finding:
    """Grades an agent: it passes in time, is slow if it is on the way, and fails otherwise. Pure."""
    task, name = found.task, f"{found.task.name}, {found.device}"
    expected = f"{task.wanted:g} within {task.seconds:g} s"
    if found.reached_seconds is not None:
        measured = f"{found.scores[-1]:.1f} after {found.reached_seconds:.0f} s, {found.environment_steps:,} steps"
        return Finding(PART, name, Grade.PASS, measured, expected, task.reference)
    if not found.scores:
        remedy = f"read the log with `podrace qualify --part {PART} --debug`"
        return Finding(PART, name, Grade.FAIL, f"no score: {found.message}", expected, task.reference, remedy)
    first, best = found.scores[0], max(found.scores)
    share = (best - first) / (task.wanted - first) if task.wanted > first else 1.0
    measured = f"{best:.1f} after {task.seconds:.0f} s (first score {first:.1f}), {found.environment_steps:,} steps"
    if share >= SHARE_OF_WAY:
        remedy = "see the part rates for what is slow"
        return Finding(PART, name, Grade.SLOW, measured, expected, task.reference, remedy)
    remedy = "see the part numerics; if it passes, report this line"
    return Finding(PART, name, Grade.FAIL, measured, expected, task.reference, remedy)


async def measure(bench: Bench, task: LearningTask) -> Learned:
    """Trains an agent until it reaches the wanted return or the time has passed."""
    spec = specification(
        environment=task.environment,
        algorithms={"ppo": {"hyperparameters": task.hyperparameters}},
        assignment={"environment_steps": 10**12},
        evaluation={"episodes": 32, "every_environment_steps": task.every_environment_steps, **task.evaluation},
        pod={"layout": "fused", "cores": 2, "gpus": min(1, len(bench.gpus))},
    )
    folder = bench.folder / task.name.replace(":", "-")
    async with trial_pod(folder, spec, wanted_return=task.wanted) as pod:
        mesh = pod.mesh
        await pod.until(lambda: mesh.reached_seconds is not None or mesh.ended, task.seconds)
        manifests = list(mesh.manifests)
        return Learned(
            task,
            bench.devices[0],
            tuple(manifest.evaluation.mean_return for manifest in manifests),
            manifests[-1].environment_steps if manifests else 0,
            mesh.reached_seconds,
            mesh.message or "; ".join(pod.warnings()[-1:]),
        )
