"""Compares podrace, Stable-Baselines3 and RLlib: same task, network, update work and cores, in alternation.

Each is also compared with a lower bound on the same cores: the matrix products of the updates alone and the simulator
alone; one after the other on one core, in parallel on two. Prints one JSON object per line.

    steps_per_second     16 environments; PPO: 128 steps of each, then 4 epochs of minibatches of 512; SAC: one step of
                         each, then 16 gradient steps on 256 replayed steps each
    seconds_to_target    training time until the first policy whose 32 greedy episodes have the target mean return,
                         including making the environments; null: not within the allowed steps. Evaluations are not
                         counted, except for podrace's pods, whose evaluator runs during training on the same cores.
                         environment_steps_to_target is the number of steps until then

podrace is measured three times: a real pod (processes, gRPC, planes, checkpoints) in the layout `separate` on two cores
and `fused` on one, and `in-process`, a loop of collecting and updating on one core. On one core a peer has one thread;
on two it has the better of one thread and two (SB3: two torch threads; RLlib: two sampling processes), in a quick run
only one. The ratio is always value / against_value: for rates more is better, for seconds less.

SB3 runs in this interpreter, with the same torch, Gymnasium and MuJoCo:

    .venv/bin/pip install --constraint constraints.txt --editable '.[bench]'

RLlib 2.60 requires Gymnasium 1.2.2, podrace uses 1.4.0, so it needs its own environment, otherwise equal:

    python3 -m venv DIR
    DIR/bin/pip install --constraint <(grep -v ^gymnasium= constraints.txt) torch '.[mujoco,bench-rllib]'
    .venv/bin/python benchmarks/peers.py --rllib-python DIR/bin/python

    python benchmarks/peers.py [--quick] [--long] [--cases REGEX] [--against sb3,rllib] [--repetitions N] [--seconds S]
"""

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.pods import Pods, Work
from loops.cases import RLLIB, SB3, Case, cases
from loops.process import Contender, Request

from agentpod.algorithms import ALGORITHMS

PEERS = {"sb3": SB3, "rllib": RLLIB}
MODULES = {SB3: "loops.sb3", RLLIB: "loops.rllib"}
PACKAGES = {SB3: "stable_baselines3", RLLIB: "ray"}
QUICK_CASES = "(CartPole-v1|Ant-v5|Pendulum-v1)/2x64$"
LAYOUT_CORES = {"separate": 2, "fused": 1}
VARIANT_CORES = {**LAYOUT_CORES, "in-process": 1}
BUSY_LOAD = 0.5
RATE_DEADLINE_SECONDS = 600.0
TARGET_DEADLINE_SECONDS = 3600.0

Samples = dict[str, list[float]]
"""Measurements by name of what was measured; `name@cores` where the number of cores matters."""
Medians = Mapping[str, float]


class Bench:
    """All contenders, started and ready.

    with Bench(pythons) as bench:
        for name, steps_per_second in bench.rates(case, seconds=4.0, seed=1):
            ...
    """

    def __init__(self, pythons: Mapping[str, str], threads: Sequence[int] = (1, 2)) -> None:
        """Creates the bench; `__enter__` starts the contenders.

        Args:
            pythons: Interpreter of each peer.
            threads: Numbers of threads that a peer is measured with, each on as many cores.
        """
        self._pythons, self._threads, self._resources = pythons, threads, ExitStack()
        self._cpus = sorted(os.sched_getaffinity(0))[:2]

    def __enter__(self) -> "Bench":
        with ExitStack() as resources:
            self._pods = resources.enter_context(Pods())
            self._own = {cores: self._start(resources, "loops.own", cores, sys.executable) for cores in self._threads}
            self._peers = {
                (peer, cores): self._start(resources, MODULES[peer], cores, python)
                for peer, python in self._pythons.items()
                for cores in self._threads
            }
            for contender in (*self._own.values(), *self._peers.values()):
                contender.wait_until_ready()
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _start(self, resources: ExitStack, module: str, cores: int, python: str) -> Contender:
        return resources.enter_context(Contender(module, self._cpus[:cores], threads=cores, python=python))

    def rates(self, case: Case, seconds: float, seed: int) -> Iterator[tuple[str, float]]:
        """Measures every contender once; yields names and steps per second."""

        def ask(contender: Contender, request: Request) -> float:
            answer = contender.ask(replace(request, seconds=seconds, seed=seed), RATE_DEADLINE_SECONDS)
            return float(answer["steps_per_second"])

        own = replace(case.own, seconds=seconds, seed=seed)
        for layout, cores in LAYOUT_CORES.items():
            yield layout, self._pods.steps_per_second(work_of(own), layout, self._cpus[:cores])
        yield "in-process", ask(self._own[1], own)
        for cores, contender in self._own.items():
            yield f"products@{cores}", ask(contender, replace(own, measure="products"))
        yield "simulator", ask(self._own[1], replace(own, measure="simulator"))
        for (peer, cores), contender in self._peers.items():
            if peer in case.peers:
                yield f"{peer}@{cores}", ask(contender, case.peers[peer])

    def times(self, case: Case, seed: int) -> Iterator[tuple[str, float, float]]:
        """Measures every contender once; yields names, seconds and steps to the target (infinite if not reached)."""

        def ask(contender: Contender, request: Request) -> tuple[float, float]:
            answer = contender.ask(replace(request, seed=seed), TARGET_DEADLINE_SECONDS)
            return answer["seconds"] or math.inf, answer["steps"] or math.inf

        own = replace(case.own, seed=seed)
        for layout, cores in LAYOUT_CORES.items():
            reached = self._pods.time_to_target(work_of(own), layout, self._cpus[:cores], TARGET_DEADLINE_SECONDS)
            yield (layout, reached.seconds, reached.steps) if reached else (layout, math.inf, math.inf)
        yield "in-process", *ask(self._own[1], own)
        for (peer, cores), contender in self._peers.items():
            if peer in case.peers:
                yield f"{peer}@{cores}", *ask(contender, case.peers[peer])


def work_of(request: Request) -> Work:
    """Translates a request to the work of a pod."""
    work = Work(request.algorithm, request.environment, request.count, request.settings, request.seed)
    if request.measure == "rate":
        return replace(work, seconds=request.seconds, warm_steps=request.warm_steps)
    return replace(
        work, target_return=request.target_return, every_steps=request.every_steps, limit_steps=request.limit_steps
    )


# --- results ----------------------------------------------------------------------------------------------------


def lines(case: Case, metric: str, medians: Medians) -> Iterator[dict[str, object]]:
    """Compares each variant of podrace with each peer."""
    best = max if metric == "steps_per_second" else min
    for variant, cores in VARIANT_CORES.items():
        if variant not in medians:
            continue
        for peer in MODULES:
            found = [medians[f"{peer}@{at}"] for at in (1, 2)[:cores] if f"{peer}@{at}" in medians]
            if found:
                yield line(f"{case.name}/{variant}", metric, medians[variant], peer, best(found))


def floor_lines(case: Case, medians: Medians) -> Iterator[dict[str, object]]:
    """Compares each variant of podrace with its lower bound, and reports the parts of that bound."""
    products, simulator, metric = medians["products@1"], medians["simulator"], "steps_per_second"
    floors = {
        1: ("floor: matrix products and simulator by turns, one core", 1 / (1 / products + 1 / simulator)),
        2: ("floor: matrix products and simulator side by side, two cores", min(products, simulator)),
    }
    for variant, cores in VARIANT_CORES.items():
        if variant in medians:
            yield line(f"{case.name}/{variant}", metric, medians[variant], *floors[cores])
    yield line(f"{case.name}/products", metric, products, "simulator alone", simulator)
    if "products@2" in medians:
        yield line(f"{case.name}/products", metric, medians["products@2"], "one thread instead of two", products)


def line(case: str, metric: str, value: float, against: str, against_value: float) -> dict[str, object]:
    """Returns one line; infinite values (never reached) become null."""
    return {
        "benchmark": "peers",
        "case": case,
        "metric": metric,
        "value": rounded(value),
        "unit": {"steps_per_second": "1/s", "seconds_to_target": "s"}.get(metric, "1"),
        "against": against,
        "against_value": rounded(against_value),
        "ratio": rounded(value / against_value) if math.isfinite(value) and math.isfinite(against_value) else None,
    }


def rounded(value: float) -> float | None:
    """Rounds to four digits; None if infinite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


# --- the command ------------------------------------------------------------------------------------------------


def measure(bench: Bench, case: Case, repetitions: int, seconds: float) -> Iterator[dict[str, object]]:
    """Yields all lines of a case: measures all contenders in turn, `repetitions` times, and takes medians."""
    samples: Samples = defaultdict(list)
    steps: Samples = defaultdict(list)
    for seed in range(1, repetitions + 1):
        if case.own.measure == "rate":
            for name, value in bench.rates(case, seconds, seed):
                samples[name].append(value)
        else:
            for name, value, count in bench.times(case, seed):
                samples[name].append(value)
                steps[name].append(count)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    if case.own.measure == "rate":
        yield from lines(case, "steps_per_second", medians)
        yield from floor_lines(case, medians)
    else:
        yield from lines(case, "seconds_to_target", medians)
        median_steps = {name: statistics.median(values) for name, values in steps.items()}
        yield from lines(case, "environment_steps_to_target", median_steps)


def installed(peer: str, python: str) -> bool:
    """Whether a peer is installed in an interpreter."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({PACKAGES[peer]!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def chosen_peers(options: argparse.Namespace) -> dict[str, str]:
    """Returns the interpreter of each peer; by default of those that are installed (without RLlib in a quick run)."""
    pythons = {SB3: sys.executable, RLLIB: options.rllib_python}
    if options.against is None:
        wanted = [SB3] if options.quick else list(pythons)
        return {peer: pythons[peer] for peer in wanted if installed(peer, pythons[peer])}
    for name in filter(None, options.against.split(",")):
        if name not in PEERS:
            raise SystemExit(f"--against {name}: choose among {', '.join(PEERS)}")
    found = {PEERS[name]: pythons[PEERS[name]] for name in filter(None, options.against.split(","))}
    for peer, python in found.items():
        if not installed(peer, python):
            raise SystemExit(f"--against: {python} has no {PACKAGES[peer]}; see {Path(__file__).name} --help")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repetition of the smallest cases")
    parser.add_argument(
        "--long", action="store_true", help="also cases of many minutes: Ant-v5 to 2,000, and RLlib's SAC to a target"
    )
    parser.add_argument("--cases", metavar="REGEX", help="only cases whose name has a match")
    parser.add_argument("--against", metavar="NAMES", help="peers: sb3, rllib, both, or '' for none")
    parser.add_argument("--repetitions", type=int, help="3, or 1 if quick")
    parser.add_argument("--seconds", type=float, help="seconds per measurement of a rate: 4, or 1 if quick")
    parser.add_argument("--rllib-python", metavar="PATH", default=sys.executable, help="interpreter that has RLlib")
    options = parser.parse_args()
    # Raises SystemExit, so that all started processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pattern = options.cases or (QUICK_CASES if options.quick else "")
    known = cases(ALGORITHMS, long=options.long)
    chosen = [case for case in known if re.search(pattern, case.name)]
    if not chosen:
        raise SystemExit(f"no case matches {pattern!r}: {', '.join(case.name for case in known)}")
    if os.getloadavg()[0] > BUSY_LOAD:
        print(f"the machine is busy (load {os.getloadavg()[0]:.1f}): expect noise", file=sys.stderr)
    repetitions = options.repetitions or (1 if options.quick else 3)
    seconds = options.seconds or (1.0 if options.quick else 4.0)
    with Bench(chosen_peers(options), threads=(1,) if options.quick else (1, 2)) as bench:
        for case in chosen:
            for found in measure(bench, case, repetitions, seconds):
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
