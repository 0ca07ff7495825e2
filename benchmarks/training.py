"""Measures end-to-end PPO steps per second of a pod, and the simulator alone with random actions on the same cores.

A pod is real: a process (or three) forked by a fork server, assignments over gRPC, rollouts through a plane. All cases
have 16 environments, horizon 128, 4 epochs, minibatch 512. Measurements alternate. Prints one JSON object per line.

    python benchmarks/training.py [--quick]
"""

import argparse
import json
import os
import statistics

import torch
from harness.floors import simulator_steps_per_second
from harness.pods import Pods, Work

COUNT, HORIZON = 16, 128
CASES = [(environment, sizes) for environment in ("CartPole-v1", "Ant-v5") for sizes in ([64, 64], [256, 256])]
LAYOUTS = ("fused", "separate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short repetition: under a minute")
    options = parser.parse_args()
    repetitions, seconds = (1, 1.5) if options.quick else (3, 4.0)
    torch.set_num_threads(1)
    with Pods() as pods:
        for environment, sizes in CASES:
            measure(pods, environment, sizes, repetitions, seconds)


def measure(pods: Pods, environment: str, sizes: list[int], repetitions: int, seconds: float) -> None:
    """Prints the results of one case."""
    hyperparameters = {"horizon": HORIZON, "epochs": 4, "minibatch_size": 512, "hidden_sizes": sizes}
    work = Work("ppo", environment, COUNT, hyperparameters, seconds=seconds)
    cpus = sorted(os.sched_getaffinity(0))
    measured: dict[str, list[float]] = {"simulator": [], **{layout: [] for layout in LAYOUTS}}
    for _ in range(repetitions):
        measured["simulator"].append(simulator_steps_per_second(environment, COUNT, seconds, HORIZON))
        for layout in LAYOUTS:
            measured[layout].append(pods.steps_per_second(work, layout, cpus))
    alone = statistics.median(measured["simulator"])
    for layout in LAYOUTS:
        value = statistics.median(measured[layout])
        line = {
            "benchmark": "training",
            "case": f"ppo/{environment}/{len(sizes)}x{sizes[0]}/{layout}",
            "metric": "steps_per_second",
            "value": round(value),
            "unit": "1/s",
            "against": "simulator alone, one thread",
            "against_value": round(alone),
            "ratio": round(value / alone, 3),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
