"""Runs the peers of `paper.py`: each run in a separate process, one after another, with a line in the runs' file.

A run that was interrupted starts again: a peer's checkpoint does not contain environments and normalization.
"""

import importlib.util
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.races import RUNS, Run, append, read
from loops.process import Answer, Contender

from papers.cases import RLLIB, SB3, PeerJob
from podrace.cli.terminal.output import finite

MODULES = {SB3: "papers.sb3", RLLIB: "papers.rllib"}
PACKAGES = {SB3: "stable_baselines3", RLLIB: "ray"}
DEADLINE_SECONDS = 4 * 3600.0


def available(pythons: Mapping[str, str], *, notify: Callable[[str], None]) -> dict[str, str]:
    """Returns the interpreters that have their peer installed; reports the peers that are skipped."""
    found = {}
    for peer, python in pythons.items():
        if _has(python, PACKAGES[peer]):
            found[peer] = python
        else:
            notify(f"{peer} is skipped: {python} has no {PACKAGES[peer]}; see benchmarks/peers.py --help")
    return found


def _has(python: str, package: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(package) is not None
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def run(
    jobs: Sequence[PeerJob], pythons: Mapping[str, str], folder: Path, *, notify: Callable[[str], None]
) -> list[Run]:
    """Runs the jobs without a result, in order.

    Returns:
        The results of the jobs that have ended, including failures; for each job its last attempt.
    """
    # Raises KeyboardInterrupt, which ends the peers; SystemExit would be taken for the failure of one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    done = {run["name"]: run for run in read(folder / RUNS)}
    for job in jobs:
        if job.peer in pythons and not done.get(job.name, {}).get("good"):
            notify(f"{job.case}: {job.peer}, seed {job.seed}")
            append(folder / RUNS, _run(job, pythons[job.peer]))
    done = {run["name"]: run for run in read(folder / RUNS)}
    return [done[job.name] for job in jobs if job.name in done]


def _run(job: PeerJob, python: str) -> Run:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    known = {"case": job.case, "contender": job.peer, "seed": job.seed, "name": job.name}
    try:
        # One thread: with two, products of small networks stall when anything else runs.
        with Contender(MODULES[job.peer], cpus, threads=1, python=python) as contender:
            answer = contender.ask(job.request, DEADLINE_SECONDS)
    except SystemExit as error:
        return {**known, "good": False, "state": "FAILED", "reason": str(error)[-1000:], "reports": {}, "curve": []}
    good = all(_sound(report) for report in answer["reports"].values())
    reason = "" if good else "a report has no finite return"
    return finite({**known, "good": good, "state": "COMPLETED", "reason": reason, "load": os.getloadavg()[0], **answer})


def _sound(report: Answer) -> bool:
    return math.isfinite(report["mean_return"])
