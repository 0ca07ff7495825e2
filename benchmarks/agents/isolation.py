"""Measures what it costs to run user code apart from the leader of a pod: environment steps per second of three pods.

    fused       all roles in one process, as in the mesh of one user
    isolated    the same pod with worker and evaluator in a second process, as with user code elsewhere
    separate    a process for each role, which collect during updates

The environment is a Gymnasium class that the specification names by `python:`, in 16 lanes. Measurements alternate.
Prints one JSON object per line.

    python -m benchmarks.agents.isolation [--quick] [--repetitions N] [--seconds S] [--cores N]
"""

import argparse
import json
import os
import statistics

from benchmarks.harness.pods import ISOLATED, Pods, Work
from podrace.limits.config import EVERYTHING

CARTPOLE = "python:gymnasium.envs.classic_control.cartpole:CartPoleEnv"
PENDULUM = "python:gymnasium.envs.classic_control.pendulum:PendulumEnv"
COUNT = 16
CASES = {
    "ppo": (CARTPOLE, {"horizon": 128, "epochs": 4, "minibatch_size": 512, "hidden_sizes": [64, 64]}),
    "sac": (PENDULUM, {"hidden_sizes": [64, 64], "updates_per_step": 0.0625}),
}
LAYOUTS = ("fused", ISOLATED, "separate")
METRICS = ("steps_per_second", "steps_per_cpu_second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cores", type=int, default=1)
    options = parser.parse_args()
    repetitions, seconds = (1, 1.5) if options.quick else (options.repetitions, options.seconds)
    cpus = sorted(os.sched_getaffinity(0))[: options.cores]
    with Pods() as pods:
        for algorithm, (environment, hyperparameters) in CASES.items():
            # The code belongs to the user of this benchmark: a pod of one process may run it.
            work = Work(algorithm, environment, COUNT, hyperparameters, seconds=seconds, allow=EVERYTHING)
            measured: dict[str, list[tuple[float, float]]] = {layout: [] for layout in LAYOUTS}
            for _ in range(repetitions):
                for layout in LAYOUTS:
                    measured[layout].append(pods.rates(work, layout, cpus))
            for index, metric in enumerate(METRICS):
                rates = {layout: [pair[index] for pair in pairs] for layout, pairs in measured.items()}
                report(metric, f"{algorithm}/{COUNT} lanes/{len(cpus)} cores", rates)


def report(metric: str, case: str, measured: dict[str, list[float]]) -> None:
    """Prints the median of each layout, and the median of its ratios to the pod of one process measured before it."""
    for layout, rates in measured.items():
        ratios = [rate / fused for rate, fused in zip(rates, measured["fused"], strict=True)]
        line = {
            "benchmark": "isolation",
            "case": f"{case}/{layout}",
            "metric": metric,
            "value": round(statistics.median(rates)),
            "unit": "1/s",
            "lowest": round(min(rates)),
            "highest": round(max(rates)),
            "ratio": round(statistics.median(ratios), 3),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
