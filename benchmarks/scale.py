"""Measures how many pods one orchestrator and one leaderboard can serve, with real databases and simulated pods.

Pods use the real contracts (pools/pods.py) at these rates of simulated time: assignments of 600 s, an evaluation every
120 s, renewals every third of a lease of at least 60 s. For small pools simulated time runs faster (at most 60 times),
so that every pool makes as many calls per second as 10,000 pods in real time; the remaining differences are the cost of
the pool's size. CPU seconds are those of the services. `without_processor` is the time per second that their threads
waited for a CPU: latencies are due to the services only where it is about 0.

    python benchmarks/scale.py [--quick] [--pods 10 100 1000 10000] [--seconds 30] [--ports] [--folder FOLDER]
    python benchmarks/scale.py --access [--pods 1000] [--seconds 1] [--calls 1000]
    python benchmarks/scale.py --record CURVES [--spec examples/cartpole.toml]
    python benchmarks/scale.py --curves CURVES [--pods 1 2 8 16 32 80 1000]
    python benchmarks/scale.py --validate CURVES [--spec SPEC] [--repetitions 3] [--pods 8 16 32 80]
    python benchmarks/scale.py --growth [machine|cluster] [--pods 8 16 32 80] [--repetitions 3] [--exponents 0.5 0.85]

With --access, calls of pods to services with authorization are compared with calls to services without it.

With --curves, simulated pods learn as real ones did, and the time to a target return is reported by number of pods; the
ideal to compare with is the training time of the pod that reached the target. --record records the curves: two short
tournaments by the normal command, with one pod and with two, with which predictions can be compared. --validate does
both, one seed at a time, and reports the errors of the predictions: of each run from the curves of its seed, and of two
pods from the curves recorded with one pod, at the step rate of two concurrent pods. Recordings are stored next to
CURVES, so that the same command continues.

With --growth, simulated races predict what it is worth that the pod of the incumbent grows (pools/growth.py): return of
the champion, area under its curve, and share of the clock until a return, compared with the same strategy with pods of
one size. No service runs.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pools.access_cost import compare
from pools.mesh import Mesh, services, simulate
from pools.record import Recorded, pooled, record

from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ASSIGNMENT_SECONDS = 600.0
EVALUATION_SECONDS = 120.0
LEASE_SECONDS = 60.0
STEPS_PER_SECOND = 10_000.0
PODS_PER_PROCESS = 5000
FULL_POOL = 10_000
MOST_SPEED = 60.0
RAMP_PODS_PER_SECOND = 50.0
SETTLE_SECONDS = 5.0
ENDLESS_STEPS = 10**15
ENDLESS_SECONDS = 1e9
RISING = [[(0, 0.0), (1e12, 1e6 + shift)] for shift in range(7)]
EPSILON = 1e-9
VALIDATED_PODS = (1, 2)
ROUNDS = 10
LONGEST_ROUND_SECONDS = 2.0
PREDICTED_PODS = (8, 16, 32, 80)
AIMED_ERROR = 0.15
GROWTH_SEED = 1000
GROWTH_FAMILIES = ("good-defaults", "slow-start", "bad-defaults", "unstable")
Usage = Mapping[str, tuple[float, float, int]]


def report(case: str, metric: str, value: float, unit: str, against: str = "", against_value: float = 0.0) -> None:
    """Prints one result."""
    line: dict[str, object] = {
        "benchmark": "scale",
        "case": case,
        "metric": metric,
        "value": float(f"{value:.4g}"),
        "unit": unit,
    }
    if against:
        line |= {
            "against": against,
            "against_value": float(f"{against_value:.4g}"),
            "ratio": float(f"{value / max(against_value, EPSILON):.4g}"),
        }
    print(json.dumps(line), flush=True)


def spec_of(pods: int, assignment_steps: int, evaluation_steps: int, **sections: Mapping[str, Any]) -> TournamentSpec:
    """Returns a tournament of `pods` pods, with resource requests that any machine satisfies."""
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": ENDLESS_STEPS},
        "assignment": {"environment_steps": assignment_steps},
        "evaluation": {"every_environment_steps": evaluation_steps},
        "pool": {"minimum_pods": pods, "maximum_pods": pods},
        "pod": {"cores": 1.0, "memory_bytes": 1 << 26},
        **sections,
    }
    return specification.resolve(specification.parse(values, source="benchmark"))


def jobs_of(mesh: Mesh, tournament_id: str, pods: int, **settings: object) -> list[dict[str, object]]:
    """Returns the job of each process of simulated pods; see pools.pods.Job."""
    return [
        {
            "orchestrator": mesh.orchestrator.address,
            "leaderboard": mesh.leaderboard.address,
            "store": str(mesh.store),
            "tournament_id": tournament_id,
            "first_pod": first,
            "pods": min(PODS_PER_PROCESS, pods - first),
            "opening_seconds": 0.0,
            "spread": True,
            "target_return": None,
            "curves": RISING,
            **settings,
        }
        for first in range(0, pods, PODS_PER_PROCESS)
    ]


# --- cost by size of the pool ------------------------------------------------------------------------------------


async def measure(folder: Path, pods: int, seconds: float, connections: int, *, on_ports: bool = False) -> None:
    """Measures one size of the pool."""
    case, speed = f"pods-{pods}", min(MOST_SPEED, FULL_POOL / pods)
    async with services(folder, LEASE_SECONDS, on_ports=on_ports) as mesh:
        steps = [int(simulated * STEPS_PER_SECOND) for simulated in (ASSIGNMENT_SECONDS, EVALUATION_SECONDS)]
        begin = time.monotonic()
        tournament_id = await mesh.create(spec_of(pods, *steps))
        await mesh.wait_for_pods(tournament_id, pods)
        report(case, "pods_started_per_second", pods / (time.monotonic() - begin), "1/s")
        ramp = max(2.0, pods / RAMP_PODS_PER_SECOND)
        start = time.monotonic() + SETTLE_SECONDS
        window = (start + ramp + SETTLE_SECONDS, start + ramp + SETTLE_SECONDS + seconds)
        jobs = jobs_of(
            mesh,
            tournament_id,
            pods,
            connections=connections,
            begin=start,
            ramp_seconds=ramp,
            measured_from=window[0],
            until=window[1] + 1.0,
            speed=speed,
            steps_per_second=STEPS_PER_SECOND,
            rollout_steps=1,
        )
        running = asyncio.create_task(simulate(jobs))
        before, after = [await usage_at(mesh, moment) for moment in window]
        notes = await running
    report_calls(case, notes, json.loads(mesh.generated.read_text()), window)
    report_usage(case, pods * speed, seconds, before, after)
    acquired = sum(len(notes[kind]["AcquireAssignment"]) for kind in ("seconds", "ramp_seconds"))
    for name, service in mesh.services.items():
        # The database is closed, so its write-ahead log is empty.
        size = service.database.stat().st_size
        report(case, f"{name}_database", size, "B")
        report(case, f"{name}_database_per_assignment", size / max(acquired, 1), "B")


async def usage_at(mesh: Mesh, moment: float) -> Usage:
    """Returns the resource usage of the services at a monotonic time: CPU seconds, seconds waiting for one, bytes."""
    await asyncio.sleep(moment - time.monotonic())
    return {
        name: (service.cpu_seconds, service.waited_seconds, service.memory_bytes)
        for name, service in mesh.services.items()
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which a share of all values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report_calls(
    case: str, notes: Mapping[str, Any], generated: Sequence[tuple[float, float]], window: tuple[float, float]
) -> None:
    """Reports the rate and latencies of each method in the window."""
    seconds: dict[str, list[float]] = dict(notes["seconds"])
    seconds["GenerateAgent"] = [taken for begin, taken in generated if window[0] <= begin < window[1]]
    decisions = 0
    for method, values in sorted(seconds.items()):
        if values:
            decisions += len(values)
            report(case, f"{method}_per_second", len(values) / (window[1] - window[0]), "1/s")
            report(case, f"{method}_p50", percentile(values, 0.5) * 1e3, "ms")
            report(case, f"{method}_p99", percentile(values, 0.99) * 1e3, "ms")
    report(case, "decisions_per_second", decisions / (window[1] - window[0]), "1/s")
    for error, count in sorted(notes["errors"].items()):
        report(case, f"errors/{error}", count, "1")


def report_usage(case: str, pods: float, seconds: float, before: Usage, after: Usage) -> None:
    """Reports the resource usage per pod; `pods` is the equivalent number in real time."""
    for name in before:
        cpu, waited = (after[name][index] - before[name][index] for index in range(2))
        report(case, f"{name}_cores", cpu / seconds, "1")
        report(case, f"{name}_cpu_per_pod_hour", cpu / seconds / pods * 3600, "s")
        report(case, f"{name}_without_processor", waited / seconds, "1")
        report(case, f"{name}_memory", after[name][2], "B")


# --- time to a target by size of the pool ------------------------------------------------------------------------


async def predict(
    folder: Path, pods: int, recorded: Recorded, connections: int, speed: float, label: str = "curves"
) -> float:
    """Predicts the time of a pool to the target, and the mesh's share of it; returns the seconds."""
    run = recorded.run_of(pods)
    best = max(score for curve in recorded.curves for _, score in curve)
    if best < recorded.target_return:
        sys.exit(f"error: curves that end at {best:g} never reach {recorded.target_return:g}; record them again")
    notes = await simulate_training(folder, pods, recorded, connections, speed)
    _, trained, waited = notes["reached"]
    case, ideal = f"{label}/pods-{pods}", run.startup_seconds + trained
    predicted = ideal + waited
    report(case, "seconds_to_target", predicted, "s", "the same training without a mesh", ideal)
    report(case, "mesh_share", notes["waited_seconds"] / (notes["waited_seconds"] + notes["trained_seconds"]), "1")
    if run.pods == pods:
        report(case, "seconds_to_target", predicted, "s", "podrace train", run.wall_seconds)
    return predicted


async def simulate_training(
    folder: Path, pods: int, recorded: Recorded, connections: int, speed: float
) -> dict[str, Any]:
    """Simulates a pool that learns by recorded curves until it reaches the target; returns its measurements."""
    run = recorded.run_of(pods)
    async with services(folder, LEASE_SECONDS) as mesh:
        spec = spec_of(
            pods,
            recorded.assignment_steps,
            recorded.evaluation_steps,
            objective={"target_return": recorded.target_return},
            evolution=recorded.evolution,
        )
        tournament_id = await mesh.create(spec)
        await mesh.wait_for_pods(tournament_id, pods)
        begin = time.monotonic() + SETTLE_SECONDS
        jobs = jobs_of(
            mesh,
            tournament_id,
            pods,
            connections=connections,
            begin=begin,
            # Real pods do not start all at the same time either.
            ramp_seconds=pods / RAMP_PODS_PER_SECOND,
            measured_from=begin,
            until=begin + ENDLESS_SECONDS,
            speed=speed,
            steps_per_second=run.steps_per_second,
            rollout_steps=recorded.rollout_steps,
            opening_seconds=run.opening_seconds,
            spread=False,
            target_return=recorded.target_return,
            curves=recorded.curves,
        )
        return await simulate(jobs)


def validate(options: argparse.Namespace) -> None:
    """Compares predictions with real runs of one pod and of two, then predicts larger pools."""
    kept: list[Recorded] = []
    errors: dict[str, list[float]] = {}
    for seed in range(1, options.repetitions + 1):
        path = options.validate.with_suffix(f".seed-{seed}.json")
        if not path.exists():
            record(options.spec, VALIDATED_PODS, seed=seed).write(path)
        recorded = Recorded.read(path)
        kept.append(recorded)
        for run in recorded.runs:
            found = predicted(options, run.pods, recorded, f"seed-{seed}")
            errors.setdefault(f"pods-{run.pods}", []).append(found / run.wall_seconds - 1)
        one, two = recorded.runs
        found = predicted(options, two.pods, recorded.curves_of(one, at=two), f"seed-{seed}/from-one-pod")
        errors.setdefault(f"pods-{two.pods}/from-one-pod", []).append(found / two.wall_seconds - 1)
    for case, found_errors in errors.items():
        typical = statistics.median(map(abs, found_errors))
        report(f"validate/{case}", "median_absolute_error", typical, "1", "aim", AIMED_ERROR)
        within = sum(abs(error) <= AIMED_ERROR for error in found_errors)
        report(f"validate/{case}", "runs_within_aim", within, "1", "runs", len(found_errors))
    pooled(kept).write(options.validate)
    for pods in options.pods or PREDICTED_PODS:
        predicted(options, pods, pooled(kept), "curves")


def predicted(options: argparse.Namespace, pods: int, recorded: Recorded, label: str) -> float:
    """Makes one prediction in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="pr-", dir=options.folder) as folder:
        return asyncio.run(predict(Path(folder), pods, recorded, options.connections, options.speed, label))


def predict_growth(options: argparse.Namespace) -> None:
    """Prints predictions for pools whose incumbent grows."""
    # In this folder, `leaderboard` is a benchmark.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.pools.growth import Plan, predict

    seeds = range(GROWTH_SEED, GROWTH_SEED + options.repetitions)
    pods = options.pods or PREDICTED_PODS
    for line in predict(Plan(pods, options.families, seeds, options.exponents, options.growth)):
        print(line, flush=True)


def main() -> None:
    """Measures in temporary folders, which are removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 and 100 pods, under a minute")
    parser.add_argument("--pods", type=int, nargs="+", help="sizes of the pool")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds to measure per size")
    parser.add_argument("--connections", type=int, default=64, help="channels that the pods of a process share")
    parser.add_argument("--ports", action="store_true", help="services on ports, where each pod needs its own token")
    parser.add_argument("--access", action="store_true", help="measure the cost of authorization")
    parser.add_argument("--calls", type=int, default=1000, help="most acquisitions of a round, with --access")
    parser.add_argument("--speed", type=float, default=10.0, help="speed of simulated time, with --curves")
    parser.add_argument("--curves", type=Path, help="predict from these learning curves")
    parser.add_argument("--record", type=Path, help="record learning curves to this file")
    parser.add_argument("--validate", type=Path, help="record to this file, and compare predictions with real runs")
    parser.add_argument("--repetitions", type=int, default=3, help="number of seeds of --validate")
    parser.add_argument("--growth", nargs="?", const="machine", choices=("machine", "cluster"), help="predict growth")
    parser.add_argument("--families", nargs="+", default=GROWTH_FAMILIES, help="simulated tasks, with --growth")
    parser.add_argument("--exponents", type=float, nargs="+", default=[0.5, 0.85], help="worth of cores, with --growth")
    parser.add_argument("--spec", type=Path, default=Path("examples/cartpole.toml"), help="specification to record")
    parser.add_argument("--folder", type=Path, help="folder to work in, on the disk that is measured")
    options = parser.parse_args()
    # Raises SystemExit, so that all started services are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.growth:
        predict_growth(options)
        return
    if options.validate:
        validate(options)
        return
    if options.record:
        record(options.spec, options.pods or [1, 2]).write(options.record)
        return
    if options.access:
        for pods in options.pods or [1000]:
            with tempfile.TemporaryDirectory(prefix="pr-", dir=options.folder) as folder:
                spec = spec_of(pods, ENDLESS_STEPS // 1000, 1000)
                seconds = min(options.seconds, LONGEST_ROUND_SECONDS)
                asyncio.run(compare(Path(folder), spec, pods, ROUNDS, seconds, report, options.calls))
        return
    sizes = [10, 100] if options.quick else [1, 2, 8, 16, 32, 80, 1000] if options.curves else [10, 100, 1000, 10_000]
    for pods in options.pods or sizes:
        with tempfile.TemporaryDirectory(prefix="pr-", dir=options.folder) as folder:
            if options.curves:
                asyncio.run(
                    predict(Path(folder), pods, Recorded.read(options.curves), options.connections, options.speed)
                )
            else:
                seconds = 10.0 if options.quick else options.seconds
                asyncio.run(measure(Path(folder), pods, seconds, options.connections, on_ports=options.ports))


if __name__ == "__main__":
    main()
