"""Runs a study of another library in a separate process, and reads its result."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison.fresh import ROOT, Policy, environment
from benchmarks.comparison.outcome import Outcome, moments_at
from benchmarks.comparison.trial_log import read

MODULES = {"optuna": "benchmarks.comparison.optuna_peer", "ray": "benchmarks.comparison.ray_peer"}
PACKAGES = {"optuna": ("optuna", "stable_baselines3"), "ray": ("ray", "stable_baselines3")}
LATE_SECONDS = 300.0
"""A study that has not ended this long after its budget is ended, and its results within the budget count."""
VARIABLES = {
    "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ray runs its workers at niceness 15, so other programs on the machine would take time from it and from it alone.
    "RAY_worker_niceness": "0",
}  # fmt: skip


def missing(library: str, python: str = sys.executable) -> str:
    """Returns the name of a package that an interpreter lacks for a library; empty if it has all.

    The environments of the tasks are those of this project, so the interpreter needs the packages of the project too.
    """
    if python == sys.executable:
        return next((package for package in PACKAGES[library] if importlib.util.find_spec(package) is None), "")
    code = (
        "import importlib.util\n"
        f"lacking = [one for one in {PACKAGES[library]!r} if importlib.util.find_spec(one) is None]\n"
        "try:\n"
        "    import simulators, podrace.plugins.loader, Box2D\n"
        "except ModuleNotFoundError as error:\n"
        "    lacking.append(error.name)\n"
        "print(*lacking[:1])"
    )
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "everything: " + (done.stderr.strip() or "it does not run")


def run(library: str, values: Mapping[str, Any], folder: Path, python: str = sys.executable) -> Outcome:
    """Runs a study to its end.

    Args:
        library: `optuna` or `ray`.
        values: Fields of sb3_trial.StudyRequest but the folder.
        folder: An empty folder with a short path, for logs and policies.
        python: Interpreter that has the library.
    """
    request = {**values, "folder": str(folder.resolve())}
    seconds = float(values["seconds"])
    with (folder / "process.log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", MODULES[library]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env=environment(1) | VARIABLES,
            # What the library starts can be ended with it.
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(json.dumps(request).encode(), timeout=seconds + LATE_SECONDS)
        except subprocess.TimeoutExpired:
            text = b""
        finally:
            _end(process)
    reason = "" if text else f"the process ended with {process.returncode}: {_tail(folder / 'process.log')}"
    return outcome_of(
        folder, seconds, int(values["moments"]), json.loads(text)["wall_seconds"] if text else seconds, reason
    )


def outcome_of(folder: Path, seconds: float, moments: int, wall_seconds: float, reason: str) -> Outcome:
    """Returns the outcome of a study from the logs of its trials: the policy with the highest score."""
    study = read(folder, seconds)
    best = study.best
    if best is None:
        return Outcome(None, wall_seconds, study.steps, study.trials, reason=reason or "no trial was scored in time")
    ends = [seconds * number / moments for number in range(1, moments)]
    published = [(at, steps, one.score, Policy("sb3", one.policy)) for at, steps, one in study.published()]
    return Outcome(
        policy=Policy("sb3", best.policy),
        wall_seconds=wall_seconds,
        environment_steps=study.steps,
        agents=study.trials,
        reported_score=best.score,
        reported_error=best.error,
        share_behind=min(1.0, best.trial_steps / study.steps) if study.steps else None,
        moments=moments_at(published, ends),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and everything in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-800:]
