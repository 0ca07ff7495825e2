"""Trains for hours on an embedded mesh without faults, and reports what grows: `python tests/chaos/soak.py --hours 2`.

Every `--period` seconds it samples the memory, file handles and threads of each process, the rows of each table, and
the objects of the store. Prints JSON. The exit code is 1 if, in the last half of the run (one hour at most), the memory
of a process grows by more than 1 MiB an hour, or anything else grows that the specification does not keep; or if a
pod was lost, an agent failed, or something is left behind.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos import ANSWER_SECONDS, START_SECONDS, ChaosOptions, Observer
from embedded_target import EmbeddedTarget, embedded
from homes import wait_for
from soak_measures import HOUR, OBJECTS, Sample, Usage, faults, growth_of_counts, growth_of_processes, last

from podrace.tournament.v1 import tournament_pb2

COLLECT_SECONDS, GRACE_SECONDS = 60, 300
OLD_SECONDS = GRACE_SECONDS + 2 * COLLECT_SECONDS
"""Age at which an object that is no longer needed has been deleted."""
SETTINGS = {
    "PODRACE_LEADERBOARD__COLLECT_PERIOD_SECONDS": str(COLLECT_SECONDS),
    "PODRACE_LEADERBOARD__COLLECT_GRACE_SECONDS": str(GRACE_SECONDS),
    "PODRACE_ORCHESTRATOR__BACKUP__PERIOD_SECONDS": "60",
    "PODRACE_LEADERBOARD__BACKUP__PERIOD_SECONDS": "60",
}
"""Checkpoints that are no longer kept are deleted often enough that the store reaches its size within the run."""
ASSIGNMENT_STEPS = 4000
KIBIBYTE = 1024


def usage_of(pid: int) -> Usage:
    """Reads what a process uses.

    Raises:
        OSError: It has ended.
    """
    process = Path(f"/proc/{pid}")
    rollup = (process / "smaps_rollup").read_text().split("\n")
    memory = sum(int(line.split()[1]) for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    threads = len(list((process / "task").iterdir()))
    return Usage(memory * KIBIBYTE, len(list((process / "fd").iterdir())), threads)


def named_processes(target: EmbeddedTarget) -> dict[str, int]:
    """Returns the processes of the mesh, and the command that started it, by name and pid."""
    home = target.home
    names = {
        pid: f"{pod.rpartition('-')[2]} {role}" for pod, roles in home.roles().items() for role, pid in roles.items()
    }
    for pid, line in home.processes().items():
        modules = ("orchestrator", "leaderboard", "agentpod forkserver")
        names.setdefault(pid, next((name for name in modules if f"-m {name} " in line), "other"))
    for process in home.started:
        names[process.pid] = "podrace train"
    return {f"{name} ({pid})": pid for pid, name in names.items()}


def rows(path: Path) -> dict[str, int]:
    """Returns the number of rows of each table of a database.

    A service locks its database, so this reads a copy. A copy that was made during a checkpoint of the log is damaged:
    then another one is made.
    """

    def counted() -> dict[str, int]:
        with tempfile.TemporaryDirectory(prefix="soak-rows-") as folder:
            for file in path.parent.glob(f"{path.name}*"):
                shutil.copy(file, folder)
            with contextlib.closing(sqlite3.connect(Path(folder) / path.name)) as database:
                tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                return {
                    f"{path.stem}.{table}": database.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0]
                    for (table,) in tables
                }

    def attempt() -> dict[str, int]:
        with contextlib.suppress(sqlite3.DatabaseError, OSError):
            return counted()
        return {}

    found: dict[str, int] = wait_for(attempt, ANSWER_SECONDS, what=f"a copy of {path.name}")
    return found


def old_files(folder: Path) -> int:
    """Returns the number of files that have not been changed for OLD_SECONDS."""
    found, latest = 0, time.time() - OLD_SECONDS
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.is_file() and path.stat().st_mtime < latest
    return found


def sample(target: EmbeddedTarget, observer: Observer) -> Sample:
    """Measures everything once."""
    processes = {}
    for name, pid in named_processes(target).items():
        with contextlib.suppress(OSError, StopIteration):
            processes[name] = usage_of(pid)
    counts = {name: count for path in sorted(target.home.path.glob("*.sqlite")) for name, count in rows(path).items()}
    counts[OBJECTS] = old_files(target.home.path / "store")
    return Sample(time.monotonic(), processes, counts)


def watch(target: EmbeddedTarget, observer: Observer, seconds: float, period: float) -> list[Sample]:
    """Returns samples of `seconds`, one every `period` seconds."""
    begin = time.monotonic()
    samples = []
    while (now := time.monotonic()) < begin + seconds:
        samples.append(sample(target, observer))
        if len(samples) % 20 == 1:
            counts = samples[-1].counts
            print(f"{now - begin:6.0f} s {counts} load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        time.sleep(max(0.0, begin + len(samples) * period - time.monotonic()))
    return samples


def soak(target: EmbeddedTarget, hours: float, period: float, pods: int) -> dict[str, Any]:
    """Runs it and returns the results."""
    options = ChaosOptions(pods=pods, cores=0.5, assignment_steps=ASSIGNMENT_STEPS)
    observer = Observer(target, target.start(options.specification(str(target.faults))))
    wait_for(lambda: observer.training() == pods, START_SECONDS, what="all pods")
    samples = watch(target, observer, hours * HOUR, period)
    window = last(samples, min(HOUR, hours * HOUR / 2))
    found = wait_for(observer.tournament, ANSWER_SECONDS, what="an answer of the orchestrator")
    events = observer.events()
    processes, counts = growth_of_processes(window), growth_of_counts(window)
    agents = counts["orchestrator.agents"]
    measured = {
        "seconds": round(samples[-1].seconds - samples[0].seconds),
        "window_seconds": round(window[-1].seconds - window[0].seconds),
        "samples": len(samples),
        "agents": samples[-1].counts["orchestrator.agents"],
        "agents_in_window": agents,
        "environment_steps": int(found.environment_steps),
        "processes": {
            name: {key: round(value, 2) for key, value in dataclasses.asdict(grown).items()}
            for name, grown in processes.items()
        },
        "counts_at_the_end": dict(samples[-1].counts),
        "growth_of_counts": counts,
        "grows": faults(processes, counts, agents),
    }
    # What was measured in hours is not lost if the end fails.
    print(json.dumps(measured, indent=2), file=sys.stderr, flush=True)
    must_be_zero = {
        "failed_agents": int(found.failed_agents),
        "tournaments_ended": int(found.state != tournament_pb2.TOURNAMENT_STATE_RUNNING),
        "pods_lost": sum(event.kind in ("pod_died", "pod_killed") for event in events),
        **target.finish(),
    }
    return {**measured, "must_be_zero": must_be_zero}


def parser() -> argparse.ArgumentParser:
    """Returns the options of the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--hours", type=float, default=2.0)
    found.add_argument("--period", type=float, default=30.0, help="seconds between two samples")
    found.add_argument("--pods", type=int, default=2)
    return found


def main() -> int:
    """Runs what the command line asks for."""
    given = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, embedded(Path(name)) as target:
        os.environ.update(SETTINGS)
        results = soak(target, given.hours, given.period, given.pods)
        print(json.dumps(results, indent=2), flush=True)
    return int(bool(results["grows"]) or any(results["must_be_zero"].values()))


if __name__ == "__main__":
    sys.exit(main())
