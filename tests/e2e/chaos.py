"""Trains on an embedded mesh while faults happen, and measures what they cost: `python tests/e2e/chaos.py`.

Prints JSON: goodput, mean cost of each class of faults, and what must be 0 (lost candidates, failed agents, corrupt
checkpoints, what is left behind). The exit code is 1 if any of these is not 0.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import grpc
from chaos_faults import KINDS, Fault, Interval, costs, goodput, plan
from homes import Home, wait_for

from podrace.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from podrace.tournament.v1 import tournament_pb2

PODS = 2
STORE_MIB = 256
WARM_UP_SECONDS = 10.0
START_SECONDS = 180.0
END_SECONDS = 60.0
SPEC = """
name = "chaos"
seed = 3
[environment]
id = "python:sleepy_environment:Sleepy"
count = 2
[algorithms.ppo.hyperparameters]
horizon = 64
minibatch_size = 64
hidden_sizes = [16]
[assignment]
environment_steps = 20000
[evaluation]
episodes = 2
every_environment_steps = 1024
share = 1.0
[champion]
reevaluate_top = 0
[pod]
layout = "separate"
cores = 1
[pool]
minimum_pods = 2
maximum_pods = 2
[objective]
wall_clock_duration = "100h"
"""


class Run:
    """A tournament on a home, with faults."""

    def __init__(self, folder: Path, store: Path | None) -> None:
        self.home = Home(folder / "home")
        self.home.path.mkdir(mode=0o755)
        self._store = store
        if store:
            (self.home.path / "store").symlink_to(store)
        spec = folder / "chaos.toml"
        spec.write_text(SPEC)
        self.training = self.home.start("train", str(spec), "--json")
        self.tournament_id = wait_for(self.home.tournament_id, START_SECONDS, what="a pod")
        self.seen: set[str] = set()

    def tournament(self) -> tournament_pb2.Tournament | None:
        """The state of the tournament; None while the orchestrator does not answer."""
        with grpc.insecure_channel(f"unix:{self.home.folders.orchestrator_socket}") as channel:
            stub: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
            request = orchestrator_pb2.GetTournamentRequest(tournament_id=self.tournament_id)
            with contextlib.suppress(grpc.RpcError):
                found: tournament_pb2.Tournament = stub.GetTournament(request, timeout=2).tournament
                return found
        return None

    def steps(self) -> int:
        """Environment steps that count."""
        return int(wait_for(self.tournament, END_SECONDS, what="an answer of the orchestrator").environment_steps)

    def note_candidates(self) -> None:
        """Remembers what was accepted so far."""
        self.seen |= {candidate.candidate_id for candidate in self.home.candidates(self.tournament_id)}

    def pids(self, target: str) -> list[int]:
        """Processes of a service, or those of a role in one pod."""
        if target in ("orchestrator", "leaderboard", "fork server"):
            with contextlib.suppress(ValueError):
                return [self.home.service(target)]
            return []
        found = [roles[target] for roles in self.home.roles().values() if target in roles]
        return found[:1]

    def inject(self, fault: Fault) -> None:
        """Lets one fault happen, and ends it."""
        if fault.kind == "full":
            assert self._store
            with _filled(self._store):
                time.sleep(fault.seconds)
            return
        pids = wait_for(lambda: self.pids(fault.target.split()[0] if fault.kind == "lose" else fault.target), 60)
        if fault.kind == "kill":
            _signal(pids, signal.SIGKILL)
            return
        _signal(pids, signal.SIGSTOP)
        if fault.kind == "stop":
            time.sleep(fault.seconds)
            _signal(pids, signal.SIGCONT)
            return
        for file in self.home.path.glob("orchestrator.sqlite*"):
            file.unlink()
        _signal(pids, signal.SIGKILL)

    def finish(self) -> dict[str, Any]:
        """Stops the tournament and returns what must be 0."""
        failed = self.training.poll() is not None
        found = wait_for(self.tournament, END_SECONDS)
        wait_for(lambda: self.home.candidates(self.tournament_id), END_SECONDS)
        kept = {candidate.candidate_id for candidate in self.home.candidates(self.tournament_id)}
        self.training.send_signal(signal.SIGINT)
        _, err = self.training.communicate(timeout=120)
        ended = time.monotonic()
        while self.home.left_behind() and time.monotonic() < ended + END_SECONDS:
            time.sleep(0.5)
        damage = self.home.json("store", "verify", str(self.home.path / "store"), with_home=False)["damage"]
        return {
            "lost_candidates": len(self.seen - kept),
            "failed_agents": int(found.failed_agents),
            "corrupt_checkpoints": len(damage),
            "left_behind": len(self.home.left_behind()),
            "tournaments_ended": int(failed),
            "tracebacks": err.count("Traceback"),
        }


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of STORE_MIB; None if this user may not mount one."""
    path = folder / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def measure_rate(run: Run) -> float:
    """Returns the environment steps per second of both pods without faults."""
    wait_for(lambda: len(run.home.roles()) == PODS and run.home.candidates(run.tournament_id), START_SECONDS)
    begin_steps, begin = run.steps(), time.monotonic()
    time.sleep(2 * WARM_UP_SECONDS)
    return (run.steps() - begin_steps) / (time.monotonic() - begin)


def run_faults(run: Run, faults: list[Fault], period_seconds: float) -> list[Interval]:
    """Injects all faults, and returns what happened after each until the next."""
    intervals, begin = [], time.monotonic()
    for fault in faults:
        time.sleep(max(0.0, begin + fault.at_seconds - time.monotonic()))
        steps, since = run.steps(), time.monotonic()
        run.note_candidates()
        run.inject(fault)
        time.sleep(max(0.0, begin + fault.at_seconds + period_seconds - time.monotonic()))
        intervals.append(Interval(fault, time.monotonic() - since, run.steps() - steps))
        print(f"{fault.at_seconds:6.0f} s  {fault.name:28} {intervals[-1].steps} steps", file=sys.stderr, flush=True)
    return intervals


def chaos(seed: int, seconds: float, period_seconds: float, kinds: Collection[str]) -> dict[str, Any]:
    """Runs it and returns the results."""
    os.environ["PODRACE_ORCHESTRATOR__BACKUP__PERIOD_SECONDS"] = "2"
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, small_disk(Path(name)) as store:
        usable = [kind for kind in kinds if kind != "full" or store]
        run = Run(Path(name), store)
        try:
            rate = measure_rate(run)
            intervals = run_faults(run, plan(seed, seconds, period_seconds, usable), period_seconds)
            must_be_zero = run.finish()
        finally:
            for process in run.home.started:
                process.kill()
                process.communicate()
    classes = costs(intervals, rate, PODS)
    return {
        "seed": seed,
        "faults": len(intervals),
        "period_seconds": period_seconds,
        "steps_per_second": round(rate, 1),
        "goodput": round(goodput(intervals, rate), 3),
        "pod_seconds_lost": {
            kind: {"count": cost.count, "mean": round(cost.seconds, 1)} for kind, cost in classes.items()
        },
        "must_be_zero": must_be_zero,
    }


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="duration of the faults")
    parser.add_argument("--period", type=float, default=29.0, help="seconds between two faults")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    options = parser.parse_args()
    results = chaos(options.seed, options.seconds, options.period, options.kinds.split(","))
    print(json.dumps(results, indent=2))
    return int(any(results["must_be_zero"].values()))


if __name__ == "__main__":
    sys.exit(main())
