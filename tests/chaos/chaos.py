"""Trains on a mesh while faults happen, and measures what they cost: `python tests/chaos/chaos.py --mesh embedded`.

Prints JSON: goodput, mean cost of each class of faults, and what must be 0 (lost candidates, failed agents, corrupt
checkpoints, what is left behind). The exit code is 1 if any of these is not 0.

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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from chaos_faults import SECONDS, Fault, plan
from chaos_measures import Happened, Interval, costs, goodput, held_share, restarts
from chaos_target import Target
from embedded_target import embedded
from homes import wait_for

from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from podrace.tournament.v1 import tournament_pb2

RATE_SECONDS = 20.0
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
environment_steps = {assignment_steps}
[evaluation]
episodes = 2
every_environment_steps = 1024
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

    def specification(self, faults: str) -> str:
        """Returns the specification; `faults` is the folder in which environments look for faults."""
        return SPEC.format(faults=faults, **vars(self))


@dataclass
class Observer:
    """Reads a tournament by its public API, also while services do not answer."""

    target: Target
    tournament_id: str
    seen: set[str] = field(default_factory=set)
    """Candidates that were accepted."""

    def steps(self) -> int:
        """Environment steps that count."""
        return int(wait_for(self.tournament, ANSWER_SECONDS, what="an answer of the orchestrator").environment_steps)

    def tournament(self) -> tournament_pb2.Tournament | None:
        """The state of the tournament; None while the orchestrator does not answer."""
        request = orchestrator_pb2.GetTournamentRequest(tournament_id=self.tournament_id)
        answer = self._ask("orchestrator", "GetTournament", request)
        return answer.tournament if answer else None

    def note_candidates(self) -> set[str] | None:
        """Remembers what was accepted so far, and returns what there is; None while the leaderboard does not answer."""
        found: set[str] = set()
        token = ""
        while True:
            request = leaderboard_pb2.ListCandidatesRequest(
                tournament_id=self.tournament_id, all_submissions=True, page_size=PAGE, page_token=token
            )
            answer = self._ask("leaderboard", "ListCandidates", request)
            if answer is None:
                return None
            found |= {candidate.candidate_id for candidate in answer.candidates}
            token = answer.next_page_token
            if not token:
                self.seen |= found
                return found

    def events(self) -> list[Happened]:
        """All events, oldest first."""
        found: list[Happened] = []
        token = ""
        while True:
            request = orchestrator_pb2.ListEventsRequest(
                tournament_id=self.tournament_id, page_size=PAGE, page_token=token
            )
            asked = functools.partial(self._ask, "orchestrator", "ListEvents", request)
            answer = wait_for(asked, ANSWER_SECONDS, what="an answer of the orchestrator")
            for event in answer.events:
                seconds = event.time.seconds + event.time.nanos / 1e9
                found.append(Happened(seconds, event.kind, event.pod_id, event.agent_id))
            token = answer.next_page_token
            if not token:
                return found

    def training(self) -> int:
        """Number of pods that have taken steps."""
        request = orchestrator_pb2.ListPodsRequest(tournament_id=self.tournament_id)
        answer = self._ask("orchestrator", "ListPods", request)
        return sum(pod.progress.environment_steps > 0 for pod in answer.pods) if answer else 0

    def _ask(self, service: str, method: str, request: Any) -> Any:
        with contextlib.suppress(grpc.RpcError, OSError, AssertionError), self.target.channel(service) as channel:
            stub: Any = (
                orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
                if service == "orchestrator"
                else leaderboard_pb2_grpc.LeaderboardServiceStub(channel)
            )
            return getattr(stub, method)(request, timeout=CALL_SECONDS)
        return None


def measure_rate(observer: Observer, pods: int) -> float:
    """Returns the environment steps per second of all pods without faults."""
    wait_for(lambda: observer.training() == pods and observer.note_candidates(), START_SECONDS, what="all pods")
    begin_steps, begin = observer.steps(), time.monotonic()
    time.sleep(RATE_SECONDS)
    return (observer.steps() - begin_steps) / (time.monotonic() - begin)


def run_faults(observer: Observer, faults: Sequence[Fault], period_seconds: float) -> list[Interval]:
    """Injects all faults, and returns what happened after each until the next."""
    intervals, begin = [], time.monotonic()
    for fault in faults:
        time.sleep(max(0.0, begin + fault.at_seconds - time.monotonic()))
        steps, since = observer.steps(), time.monotonic()
        observer.note_candidates()
        observer.target.inject(fault)
        time.sleep(max(0.0, begin + fault.at_seconds + period_seconds - time.monotonic()))
        taken = observer.steps() - steps
        intervals.append(Interval(fault, time.monotonic() - since, taken))
        load = os.getloadavg()[0]
        line = f"{fault.at_seconds:6.0f} s  {fault.name:30} {fault.seconds:5.1f} s {taken:7} steps  load {load:.1f}"
        print(line, file=sys.stderr, flush=True)
    return intervals


def chaos(target: Target, options: ChaosOptions, faults_folder: str) -> dict[str, Any]:
    """Runs it and returns the results."""
    specification = options.specification(faults_folder)
    observer = Observer(target, target.start(specification))
    classes = [
        (kind, of)
        for kind, of in target.classes
        if kind in options.kinds and (not options.targets or of in options.targets)
    ]
    rate = measure_rate(observer, options.pods)
    loads, begin = [os.getloadavg()[0]], time.time()
    faults = plan(options.seed, options.seconds, options.period_seconds, classes, options.lasting_seconds)
    intervals = run_faults(observer, faults, options.period_seconds)
    end = time.time()
    loads.append(os.getloadavg()[0])
    found = wait_for(observer.tournament, ANSWER_SECONDS, what="an answer of the orchestrator")
    events = observer.events()
    wait_for(lambda: observer.note_candidates() is not None, ANSWER_SECONDS, what="an answer of the leaderboard")
    kept = observer.note_candidates() or set()
    ended = found.state != tournament_pb2.TOURNAMENT_STATE_RUNNING
    must_be_zero = {
        "lost_candidates": len(observer.seen - kept),
        "failed_agents": int(found.failed_agents),
        "tournaments_ended": int(ended),
        **target.finish(),
    }
    return {
        "mesh": target.name,
        "seed": options.seed,
        "pods": options.pods,
        "learners": options.learners,
        "faults": len(intervals),
        "period_seconds": options.period_seconds,
        "steps_per_second": round(rate, 1),
        "load": round(statistics.mean(loads), 1),
        "candidates": len(observer.seen),
        "goodput": round(goodput(intervals, rate), 3),
        "held": round(held_share(events, begin, end, options.pods), 3),
        "restarts_of_agents": restarts(events, begin),
        "pods_lost": sum(event.kind in ("pod_died", "pod_killed") for event in events),
        "pod_seconds_lost": {
            name: {"count": cost.count, "mean": round(cost.seconds, 1)}
            for name, cost in costs(intervals, rate, options.pods).items()
        },
        "must_be_zero": must_be_zero,
    }


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


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", choices=MESHES, default="embedded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800.0, help="duration of the faults")
    parser.add_argument("--period", type=float, default=29.0, help="seconds between two faults")
    parser.add_argument("--lasting", type=float, help="seconds of each fault that has a duration; default: drawn")
    parser.add_argument("--kinds", default=",".join(SECONDS), help="comma-separated")
    parser.add_argument("--targets", default="", help="comma-separated, such as orchestrator; default: anything")
    parser.add_argument("--pods", type=int, default=2)
    parser.add_argument("--cores", type=float, default=1.0, help="of each pod")
    parser.add_argument("--learners", type=int, default=1, help="of each agent")
    parser.add_argument("--step-seconds", type=float, default=0.005, help="time that a step of an environment takes")
    given = parser.parse_args()
    options = ChaosOptions(
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
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as name,
        opened(given.mesh, Path(name), options) as (target, faults_folder),
    ):
        results = chaos(target, options, faults_folder)
        print(json.dumps(results, indent=2), flush=True)
    return int(any(results["must_be_zero"].values()))


if __name__ == "__main__":
    sys.exit(main())
