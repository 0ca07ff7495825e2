"""Runs a tournament with a pod on each GPU, by the embedded mesh, and checks that no two pods are on the same one."""

import asyncio
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentpod.qualification.bench import Bench
from podrace.mesh.home import Folders
from podrace.qualification.findings import Finding, Grade
from podrace.specification.files import to_toml
from podrace.specification.resolve import parse

PART = "tournament"
SERVICES = ("orchestrator", "leaderboard")
WALL_CLOCK_SECONDS, STAND_IN_SECONDS = 40, 45
START_SECONDS = 60.0
POLL_SECONDS = 0.2
STAND_IN_PODS = 2
GpusByPod = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Raced:
    """What was seen of a tournament."""

    gpus: tuple[str, ...]
    """UUIDs of the GPUs of this machine; empty: processors took their place."""
    wanted_pods: int
    """Pods that were expected at the same time."""
    polls: tuple[GpusByPod, ...]
    """GPUs of the running pods, at each poll."""
    exit_code: int | None
    """Of the command; None: it did not end in time."""
    message: str = ""


def run(bench: Bench) -> Iterator[Finding]:
    """Runs and grades the tournament."""
    missing = [name for name in SERVICES if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "run `podrace qualify --part tournament` where the services are installed, not in an image for pods"
        yield Finding(PART, "one pod on each GPU", Grade.ABSENT, f"no {' and no '.join(missing)} here", remedy=remedy)
        return
    yield from judge(asyncio.run(measure(bench)))


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: Raced) -> Iterator[Finding]:
    """Grades a tournament. Pure."""
    most = max((len(poll) for poll in found.polls), default=0)
    log = f"read the log with `podrace qualify --part {PART} --debug`"
    enough = most == found.wanted_pods and found.exit_code == 0
    measured = f"{most} pods at the same time" + (f": {found.message}" if found.message and not enough else "")
    grade = Grade.PASS if enough else Grade.FAIL
    yield Finding(PART, "pods", grade, measured, str(found.wanted_pods), remedy="" if enough else log)
    shared = shared_gpus(found.polls)
    foreign = {gpu for poll in found.polls for gpus in poll.values() for gpu in gpus} - set(found.gpus)
    wrong = [f"{gpu} had pods {', '.join(pods)}" for gpu, pods in shared.items()]
    wrong += [f"{gpu} is not a GPU of this machine" for gpu in sorted(foreign)]
    wrong += [f"pod {pod} had no GPU" for pod in _without_gpu(found)]
    measured = "; ".join(wrong) or f"{len(found.gpus)} GPUs, each with at most one pod"
    grade = Grade.FAIL if wrong else Grade.PASS
    yield Finding(PART, "one pod on each GPU", grade, measured, remedy="report this line" if wrong else "")


def shared_gpus(polls: Sequence[GpusByPod]) -> dict[str, list[str]]:
    """Returns the GPUs that several pods had at the same time, with these pods. Pure."""
    found: dict[str, set[str]] = {}
    for poll in polls:
        for pod, gpus in poll.items():
            for gpu in gpus:
                others = {other for other, held in poll.items() if other != pod and gpu in held}
                if others:
                    found.setdefault(gpu, set()).update({pod, *others})
    return {gpu: sorted(pods) for gpu, pods in found.items()}


def _without_gpu(found: Raced) -> list[str]:
    return sorted({pod for poll in found.polls for pod, gpus in poll.items() if found.gpus and not gpus})


# --- measuring ---------------------------------------------------------------------------------------------------


def specification_text(bench: Bench) -> str:
    """Returns the specification: more pods than there are GPUs, with one GPU each."""
    wanted = len(bench.gpus) + 1 if bench.gpus else STAND_IN_PODS
    seconds = WALL_CLOCK_SECONDS if bench.gpus else STAND_IN_SECONDS
    spec = parse(
        {
            "name": PART,
            "environment": {"id": "cartpole", "count": 64},
            "algorithms": {"ppo": {"hyperparameters": {"horizon": 32, "minibatch_size": 512, "hidden_sizes": [32]}}},
            "objective": {"wall_clock_duration": f"{seconds}s"},
            "pool": {"maximum_pods": wanted},
            "pod": {"cores": 0.5, "layout": "fused", "gpus": min(1, len(bench.gpus))},
            "assignment": {"environment_steps": 2_000_000},
            "evaluation": {"episodes": 8, "every_environment_steps": 500_000},
        },
        source="qualify",
    )
    return to_toml(spec)


async def measure(bench: Bench) -> Raced:
    """Runs the tournament, and reads which pods have which GPUs while it runs."""
    path, home = bench.folder / "qualify.toml", bench.folder / "home"
    path.write_text(specification_text(bench))
    pods = Folders.of(home).runtime / "pods"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "podrace.cli", "train", str(path), "--home", str(home)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=asyncio.subprocess.PIPE,
    )
    reading = asyncio.ensure_future(process.communicate())
    limit = START_SECONDS + (WALL_CLOCK_SECONDS if bench.gpus else STAND_IN_SECONDS) * 2
    polls, deadline = [], time.monotonic() + limit
    while not reading.done() and time.monotonic() < deadline:
        polls.append(read_pods(pods))
        await asyncio.wait([reading], timeout=POLL_SECONDS)
    if process.returncode is None:
        process.terminate()
        await asyncio.wait([reading], timeout=START_SECONDS)
    lines = (reading.result()[1] if reading.done() else b"").decode(errors="replace").splitlines()
    wanted = len(bench.gpus) or STAND_IN_PODS
    uuids = tuple(gpu.uuid for gpu in bench.gpus)
    return Raced(uuids, wanted, tuple(polls), process.returncode, lines[-1] if lines else "")


def read_pods(folder: Path) -> dict[str, tuple[str, ...]]:
    """Returns the GPUs of the pods whose leader runs."""
    found = {}
    for path in folder.glob("*/pod.json"):
        with suppress(OSError, ValueError, KeyError):
            content = json.loads(path.read_text())
            if any(Path(f"/proc/{role['pid']}").exists() for role in content["roles"].values()):
                found[str(content["pod_id"])] = tuple(content["gpus"])
    return found
