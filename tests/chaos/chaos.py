"""Trains on a mesh while faults happen, and measures what they cost: `python tests/chaos/chaos.py --mesh embedded`.

Prints JSON: goodput, cost of each class of faults, faults that did not happen, and what must be 0 (lost candidates,
failed agents, corrupt checkpoints, what is left behind). The exit code is 1 if any of these is not 0.

An accepted candidate is one that the leaderboard has reported to a watcher, or that a pod has logged as accepted. One
that the leaderboard no longer has is lost, unless its database was lost and it was accepted after the newest backup:
`candidates_after_backup` is the number of these.

The meshes `compose` and `kubernetes` need the engine of DOCKER_HOST and the cluster of KUBECONFIG on this machine, and
the images that `make test-compose` and `make test-k8s` build.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where pytest's `pythonpath` is not used: for this program, and for soak.py, which imports this module first.
sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in ("e2e", "engine", "security"))

import grpc
from chaos_candidates import CandidateWatch
from chaos_faults import SECONDS, Fault, plan
from chaos_measures import (
    Happened,
    Interval,
    costs,
    goodput,
    held_share,
    missing_candidates,
    not_injected,
    restarts,
)
from chaos_target import NotInjected, Target
from embedded_target import embedded
from homes import wait_for

from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from podrace.tournament.v1 import tournament_pb2

SAMPLE_SECONDS = 0.5
START_SECONDS = 240.0
ANSWER_SECONDS = 90.0
CALL_SECONDS = 3.0
PAGE = 1000
MESHES = ("embedded", "compose", "kubernetes")
SPEC = """
name = "chaos"
seed = 3
[environment]
id = "python:sleepy_environment:Sleepy"
count = 2
options = {{ step_seconds = {step_seconds}, faults = "{faults}" }}
[algorithms.ppo.hyperparameters]
horizon = 64
minibatch_size = 64
hidden_sizes = [16]
[assignment]
checkpoint_period = "5s"
environment_steps = {assignment_steps}
[evaluation]
episodes = 2
every_environment_steps = 2048
share = 1.0
[champion]
reevaluate_top = 0
[pod]
layout = "separate"
cores = {cores}
learners = {learners}
memory_bytes = {memory_bytes}
[pool]
minimum_pods = {pods}
maximum_pods = {pods}
[objective]
wall_clock_duration = "100h"
"""


@dataclass(frozen=True)
class ChaosOptions:
    """What to run."""

    seed: int = 1
    seconds: float = 1800.0
    """Duration of the faults."""
    period_seconds: float = 29.0
    """Time between two faults."""
    lasting_seconds: float | None = None
    """Duration of each fault that has one; None: as `chaos_faults.SECONDS` says."""
    kinds: Collection[str] = tuple(SECONDS)
    targets: Collection[str] = ()
    """What the faults may happen to; empty: anything."""
    pods: int = 2
    cores: float = 1.0
    """Of each pod."""
    learners: int = 1
    """Of each agent."""
    step_seconds: float = 0.005
    """Time that a step of an environment takes."""
    memory_bytes: int = 1 << 30
    """Of each pod."""
    assignment_steps: int = 20000
    """Environment steps of each assignment."""
    rate_seconds: float = 60.0
    """Time in which the rate without faults is measured, before the faults and again after them."""

    def specification(self, faults: str) -> str:
        """Returns the specification; `faults` is the folder in which environments look for faults."""
        return SPEC.format(faults=faults, **vars(self))


@dataclass
class Observer:
    """Reads a tournament by its public API; waits for services that do not answer, for ANSWER_SECONDS."""

    target: Target
    tournament_id: str

    def steps(self) -> int:
        """Environment steps that count."""
        return int(wait_for(self.tournament, ANSWER_SECONDS, what="an answer of the orchestrator").environment_steps)

    def tournament(self) -> tournament_pb2.Tournament | None:
        """The state of the tournament; None while the orchestrator does not answer."""
        request = orchestrator_pb2.GetTournamentRequest(tournament_id=self.tournament_id)
        answer = self._ask("orchestrator", "GetTournament", request)
        return answer.tournament if answer else None

    def candidates(self) -> set[str]:
        """All candidates that the leaderboard has."""
        found: set[str] = set()
        request = leaderboard_pb2.ListCandidatesRequest(
            tournament_id=self.tournament_id, all_submissions=True, page_size=PAGE
        )
        while True:
            answer = self._answer("leaderboard", "ListCandidates", request)
            found |= {candidate.candidate_id for candidate in answer.candidates}
            request.page_token = answer.next_page_token
            if not request.page_token:
                return found

    def events(self) -> list[Happened]:
        """All events, oldest first."""
        found: list[Happened] = []
        request = orchestrator_pb2.ListEventsRequest(tournament_id=self.tournament_id, page_size=PAGE)
        while True:
            answer = self._answer("orchestrator", "ListEvents", request)
            for event in answer.events:
                seconds = event.time.seconds + event.time.nanos / 1e9
                found.append(Happened(seconds, event.kind, event.pod_id, event.agent_id))
            request.page_token = answer.next_page_token
            if not request.page_token:
                return found

    def training(self) -> int:
        """Number of pods that have taken steps."""
        request = orchestrator_pb2.ListPodsRequest(tournament_id=self.tournament_id)
        answer = self._ask("orchestrator", "ListPods", request)
        return sum(pod.progress.environment_steps > 0 for pod in answer.pods) if answer else 0

    def _answer(self, service: str, method: str, request: Any) -> Any:
        asked = functools.partial(self._ask, service, method, request)
        return wait_for(asked, ANSWER_SECONDS, what=f"an answer of the {service}")

    def _ask(self, service: str, method: str, request: Any) -> Any:
        with contextlib.suppress(grpc.RpcError, OSError, AssertionError), self.target.channel(service) as channel:
            stub: Any = (
                orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
                if service == "orchestrator"
                else leaderboard_pb2_grpc.LeaderboardServiceStub(channel)
            )
            return getattr(stub, method)(request, timeout=CALL_SECONDS)
        return None


@dataclass(frozen=True)
class Run:
    """What was measured while faults happened."""

    intervals: Sequence[Interval]
    begin: float
    """When the faults began, in seconds since 1970."""
    end: float
    before: float
    """Environment steps per second of all pods before the faults."""
    after: float | None
    """The same after the faults, because other programs may use the processors more, or less, than before; None if not
    all pods trained again within START_SECONDS."""
    load: float
    accepted: Mapping[str, float]
    """When each candidate was accepted, in seconds since 1970."""

    @property
    def rate(self) -> float:
        """Environment steps per second without faults."""
        return self.before if self.after is None else (self.before + self.after) / 2


def measure_rate(observer: Observer, options: ChaosOptions) -> float:
    """Returns the environment steps per second of all pods without faults.

    Pods report their steps every few seconds, so that the difference between two counts is that of a longer or shorter
    time. The slope of a line through many of them is not.
    """
    wait_for(lambda: observer.training() == options.pods, START_SECONDS, what="all pods")
    times, steps = [time.monotonic()], [observer.steps()]
    while times[-1] < times[0] + options.rate_seconds:
        time.sleep(min(SAMPLE_SECONDS, options.rate_seconds))
        times.append(time.monotonic())
        steps.append(observer.steps())
    return round(statistics.linear_regression(times, steps).slope, 1)


def inject(target: Target, fault: Fault) -> bool:
    """Lets a fault happen; returns whether it did."""
    try:
        target.inject(fault)
    except NotInjected as error:
        print(f"not injected: {fault.name}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def run_faults(observer: Observer, faults: Sequence[Fault], period_seconds: float) -> list[Interval]:
    """Injects all faults, and returns what happened after each until the next."""
    intervals, begin = [], time.monotonic()
    for fault in faults:
        time.sleep(max(0.0, begin + fault.at_seconds - time.monotonic()))
        steps, since = observer.steps(), time.monotonic()
        injected = inject(observer.target, fault)
        time.sleep(max(0.0, begin + fault.at_seconds + period_seconds - time.monotonic()))
        taken = observer.steps() - steps
        intervals.append(Interval(fault, time.monotonic() - since, taken, injected))
        load = os.getloadavg()[0]
        line = f"{fault.at_seconds:6.0f} s  {fault.name:30} {fault.seconds:5.1f} s {taken:7} steps  load {load:.1f}"
        print(line, file=sys.stderr, flush=True)
    return intervals


def classes_of(target: Target, options: ChaosOptions) -> list[tuple[str, str]]:
    """Returns the classes of faults of a run."""
    return [
        (kind, of)
        for kind, of in target.classes
        if kind in options.kinds and (not options.targets or of in options.targets)
    ]


def run(observer: Observer, options: ChaosOptions) -> Run:
    """Measures the rate without faults, injects the faults, and measures the rate again."""
    target = observer.target
    faults = plan(
        options.seed, options.seconds, options.period_seconds, classes_of(target, options), options.lasting_seconds
    )
    with CandidateWatch(target, observer.tournament_id) as watch:
        wait_for(lambda: watch.accepted, START_SECONDS, what="a candidate")
        before, load, begin = measure_rate(observer, options), os.getloadavg()[0], time.time()
        intervals, end = run_faults(observer, faults, options.period_seconds), time.time()
        load, after = (load + os.getloadavg()[0]) / 2, None
        with contextlib.suppress(AssertionError):
            after = measure_rate(observer, options)
    return Run(intervals, begin, end, before, after, load, {**target.acknowledged(), **watch.accepted})


def chaos(target: Target, options: ChaosOptions, faults_folder: str) -> dict[str, Any]:
    """Runs it and returns the results."""
    observer = Observer(target, target.start(options.specification(faults_folder)))
    measured = run(observer, options)
    found = wait_for(observer.tournament, ANSWER_SECONDS, what="an answer of the orchestrator")
    events = observer.events()
    lost, after_backup = missing_candidates(measured.accepted, observer.candidates(), target.unprotected)
    share = goodput(measured.intervals, measured.rate)
    results = {
        "mesh": target.name,
        "seed": options.seed,
        "pods": options.pods,
        "learners": options.learners,
        "faults": sum(one.injected for one in measured.intervals),
        "not_injected": not_injected(measured.intervals),
        "period_seconds": options.period_seconds,
        "steps_per_second": {"before": measured.before, "after": measured.after},
        "load": round(measured.load, 1),
        "candidates": len(measured.accepted),
        "candidates_after_backup": len(after_backup),
        "goodput": None if share is None else round(share, 3),
        "held": round(held_share(events, measured.begin, measured.end, options.pods), 3),
        "restarts_of_agents": restarts(events, measured.begin),
        "pods_lost": sum(event.kind in ("pod_died", "pod_killed") for event in events),
        "pod_seconds_lost": {
            name: cost.rounded() for name, cost in costs(measured.intervals, measured.rate, options.pods).items()
        },
    }
    # What was measured in half an hour is not lost if the end fails.
    print(json.dumps(results, indent=2), file=sys.stderr, flush=True)
    must_be_zero = {
        "lost_candidates": len(lost),
        "failed_agents": int(found.failed_agents),
        "tournaments_ended": int(found.state != tournament_pb2.TOURNAMENT_STATE_RUNNING),
        **target.finish(),
    }
    return {**results, "must_be_zero": must_be_zero}


@contextlib.contextmanager
def opened(mesh: str, folder: Path, options: ChaosOptions) -> Iterator[tuple[Target, str]]:
    """Yields a mesh, and the folder in which its environments look for faults; empty: where tests mount it."""
    if mesh == "embedded":
        with embedded(folder, options.learners) as target:
            yield target, str(target.faults)
        return
    # Only they need the packages of an engine.
    from engine_target import composed, on_kubernetes

    with (composed if mesh == "compose" else on_kubernetes)(folder) as target:
        yield target, ""


def parser() -> argparse.ArgumentParser:
    """Returns the options of the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--mesh", choices=MESHES, default="embedded")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--seconds", type=float, default=1800.0, help="duration of the faults")
    found.add_argument("--period", type=float, default=29.0, help="seconds between two faults")
    found.add_argument("--lasting", type=float, help="seconds of each fault that has a duration; default: drawn")
    found.add_argument("--kinds", default=",".join(SECONDS), help="comma-separated")
    found.add_argument("--targets", default="", help="comma-separated, such as orchestrator; default: anything")
    found.add_argument("--pods", type=int, default=2)
    found.add_argument("--cores", type=float, default=1.0, help="of each pod")
    found.add_argument("--learners", type=int, default=1, help="of each agent")
    found.add_argument("--step-seconds", type=float, default=0.005, help="time that a step of an environment takes")
    return found


def options_of(given: argparse.Namespace) -> ChaosOptions:
    """Returns what the command line asks for."""
    return ChaosOptions(
        seed=given.seed,
        seconds=given.seconds,
        period_seconds=given.period,
        lasting_seconds=given.lasting,
        kinds=given.kinds.split(","),
        targets=given.targets.split(",") if given.targets else (),
        pods=given.pods,
        cores=given.cores,
        learners=given.learners,
        step_seconds=given.step_seconds,
        memory_bytes=(1 << 30) if given.pods <= 2 else (1 << 29),
    )


def main() -> int:
    """Runs what the command line asks for."""
    given = parser().parse_args()
    options = options_of(given)
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as name,
        opened(given.mesh, Path(name), options) as (target, faults_folder),
    ):
        results = chaos(target, options, faults_folder)
        print(json.dumps(results, indent=2), flush=True)
    return int(any(results["must_be_zero"].values()))


if __name__ == "__main__":
    sys.exit(main())
