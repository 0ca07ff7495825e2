"""Kills a pod that trains without warning, starts another one, and checks that the agent continues."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentpod.config import LEADER_ROLE
from agentpod.qualification.bench import Bench
from agentpod.qualification.trial_pod import specification, trial_pod
from podrace.qualification.findings import Finding, Grade

PART = "resume"
PUBLISH_SECONDS = 60.0
SMALL = {"horizon": 32, "hidden_sizes": [32]}
CASES: dict[str, dict[str, Any]] = {
    "ppo": {**SMALL, "minibatch_size": 512},
    "sac-discrete": {
        **SMALL,
        "batch_size": 256,
        "updates_per_step": 0.01,
        "warmup_steps": 4096,
        "replay_capacity": 20_000,
    },
}
"""Hyperparameters by algorithm; the second has a replay memory."""


@dataclass(frozen=True)
class Continued:
    """What happened to an agent whose pod was killed."""

    algorithm: str
    device: str
    published_steps: int
    """Environment steps of the last checkpoint before the kill; 0: none was published."""
    continued_steps: int
    """Environment steps with which the second pod began; 0: it began again, or did not train."""
    republished_steps: int
    """Environment steps of its first checkpoint; 0: none was published."""
    seconds: float
    """From the start of the second pod to the start of its training."""
    message: str = ""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades each case."""
    for name in CASES:
        yield judge(asyncio.run(measure(bench, name)))


def judge(found: Continued) -> Finding:
    """Grades a continuation: it must start at a checkpoint, and publish a later one. Pure."""
    name = f"{found.algorithm} after kill -9, {found.device}"
    expected = "continues from its last checkpoint and publishes a later one"
    remedy = f"read the log with `podrace qualify --part {PART} --debug`"
    if not found.published_steps:
        return Finding(PART, name, Grade.FAIL, f"no checkpoint: {found.message}", expected, remedy=remedy)
    continued = found.continued_steps >= found.published_steps and found.republished_steps > found.published_steps
    measured = (
        f"published at {found.published_steps:,} steps, continued at {found.continued_steps:,} after"
        f" {found.seconds:.1f} s, published again at {found.republished_steps:,}"
    )
    return Finding(
        PART, name, Grade.PASS if continued else Grade.FAIL, measured, expected, remedy="" if continued else remedy
    )


async def measure(bench: Bench, algorithm: str) -> Continued:
    """Trains, kills and continues an agent."""
    spec = specification(
        environment={"id": "cartpole", "count": 64},
        algorithms={algorithm: {"hyperparameters": CASES[algorithm]}},
        assignment={"environment_steps": 10**9},
        evaluation={"episodes": 4, "every_environment_steps": 20_000, "share": 1.0},
        pod={"layout": "fused", "cores": 1, "gpus": min(1, len(bench.gpus))},
    )
    async with trial_pod(bench.folder / algorithm, spec) as pod:
        mesh, device = pod.mesh, bench.devices[0]
        await pod.until(lambda: len(mesh.manifests) > 0 or mesh.ended, PUBLISH_SECONDS)
        if not mesh.manifests or mesh.ended:
            return Continued(algorithm, device, 0, 0, 0, 0.0, mesh.message or "; ".join(pod.warnings()[-1:]))
        pod.kill(LEADER_ROLE)
        await pod.until(lambda: pod.exit_code is not None, PUBLISH_SECONDS)
        count = len(mesh.manifests)
        published = mesh.manifests[-1].environment_steps
        trainings = len(pod.logged("training"))
        mesh.hand_out_again(spec, epoch=2)
        started = time.monotonic()
        await pod.start()
        # The log states where the training begins; the first report of progress comes many steps later.
        await pod.until(lambda: len(pod.logged("training")) > trainings, PUBLISH_SECONDS)
        seconds = time.monotonic() - started
        first = sum(int(entry["environment_steps"]) for entry in pod.logged("training")[trainings:][:1])
        await pod.until(lambda: len(mesh.manifests) > count, PUBLISH_SECONDS)
        again = mesh.manifests[-1].environment_steps if len(mesh.manifests) > count else 0
    return Continued(algorithm, device, published, first, again, seconds)
