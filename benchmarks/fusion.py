"""Measures what a second learner gains, with each mode of fusion: return after equal samples and equal seconds.

Real pods run on the same cores, one after the other, alternating over seeds. Samples are counted over all learners; the
seconds include making the environments. With as many cores as processes, a second learner nearly doubles the samples
per second; with fewer, the benchmark shows the cost of fusion and its effect on learning. Prints one JSON object per
line; the value is the median over seeds.
"""

import argparse
import json
import os
import statistics
from dataclasses import dataclass

from harness.pods import Pods, Score, Work

SETTINGS = {"learning_rate": 1e-3, "discount": 0.95, "horizon": 64, "epochs": 8, "minibatch_size": 256}
MODES = ("average", "allreduce", "diloco")
COUNT, EVERY_UPDATES = 16, 4
SECONDS_OF_A_RUN = 300.0


@dataclass(frozen=True)
class FusionCase:
    """One learner, or several with a mode of fusion."""

    learners: int
    mode: str = ""

    @property
    def name(self) -> str:
        """The name that is printed."""
        return f"{self.learners} learners, {self.mode}" if self.mode else "1 learner"


CASES = [FusionCase(1), *(FusionCase(2, mode) for mode in MODES)]


def work(case: FusionCase, environment: str, seed: int, steps: int) -> Work:
    """Returns the work of a pod."""
    fusion = {"mode": case.mode, "every_updates": EVERY_UPDATES} if case.mode else {}
    return Work(
        "ppo",
        environment,
        COUNT,
        SETTINGS,
        seed=seed,
        target_return=float("inf"),
        every_steps=max(1, steps // 10),
        limit_steps=steps,
        learners=case.learners,
        fusion=fusion,
    )


def score_at(curve: list[Score], seconds: float) -> float:
    """Returns the return of the newest policy at this time, or of the first policy if there was none yet."""
    known = [score for score in curve if score.seconds <= seconds]
    return (known or curve)[-1 if known else 0].mean_return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps per agent")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed and few steps: under a minute")
    options = parser.parse_args()
    seeds, steps = (1, 20_000) if options.quick else (options.seeds, options.steps)
    cpus = sorted(os.sched_getaffinity(0))
    curves: dict[FusionCase, list[list[Score]]] = {case: [] for case in CASES}
    with Pods() as pods:
        for seed in range(1, seeds + 1):
            for case in CASES:
                given = work(case, options.environment, seed, steps)
                curves[case].append(pods.curve(given, "separate", cpus, SECONDS_OF_A_RUN))
    # The duration of the fastest run: by then every run has a score.
    seconds = min(curve[-1].seconds for of_case in curves.values() for curve in of_case)
    for case, of_case in curves.items():
        measured = {
            "return_at_equal_samples": [curve[-1].mean_return for curve in of_case],
            "return_at_equal_wall_clock": [score_at(curve, seconds) for curve in of_case],
            "steps_per_second": [curve[-1].steps / curve[-1].seconds for curve in of_case],
        }
        for metric, values in measured.items():
            print_line(options.environment, case, metric, values)


def print_line(environment: str, case: FusionCase, metric: str, values: list[float]) -> None:
    """Prints one result."""
    line = {
        "benchmark": "fusion",
        "case": f"ppo/{environment}/{case.name}",
        "metric": metric,
        "value": round(statistics.median(values), 1),
        "unit": "1/s" if metric == "steps_per_second" else "return",
        "seeds": [round(value, 1) for value in values],
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
