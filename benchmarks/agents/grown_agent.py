"""Measures what an agent gains from a second core: steps per second, and return at equal environment steps.

Real pods of two sizes run one after the other, alternating: one core (`fused`, collecting and updating take turns), and
two cores (`separate`, the next rollout is collected while the learner updates, so its policy is one version older).
Three rates are printed, because wall clock says little on a machine that also does other work:
    steps_per_second          wall clock
    steps_per_cpu_second      per second of processor time of all processes of the pod
    steps_per_busiest_second  per second of processor time of the process that computes most: the rate of a pod whose
                              processes each have a core to themselves
Growth pays if the rate rises by more than the square root of the cores: two pods that work apart are worth at least
that much to a tournament. The return is the mean over the scores of a run, which is the area under its learning curve;
the difference between the sizes is paired by seed, with a 95 % interval of Student's t.

    python -m benchmarks.agents.grown_agent [--seeds 5] [--rounds 3] [--cases ppo/CartPole-v1,sac/Pendulum-v1] [--quick]
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.harness.pods import Pods, Work

RATES = ("steps_per_second", "steps_per_cpu_second", "steps_per_busiest_second")
WORTH_GROWING = math.sqrt(2)
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Two-sided 95 % quantile of Student's t by the number of seeds."""
SCORES = 8
"""Number of scores of a learning curve."""


@dataclass(frozen=True)
class Size:
    """A size of a pod."""

    cores: int
    layout: str


SIZES = (Size(1, "fused"), Size(2, "separate"))


@dataclass(frozen=True)
class Case:
    """What is trained, and for how long."""

    work: Work
    rate_seconds: float
    steps: int
    """Environment steps of a learning curve."""


PPO_VALUES = {"horizon": 128, "epochs": 4, "minibatch_size": 512, "hidden_sizes": [64, 64]}
CASES = {
    "ppo/CartPole-v1": Case(Work("ppo", "CartPole-v1", 16, PPO_VALUES), 4.0, 64_000),
    "ppo/Ant-v5": Case(Work("ppo", "Ant-v5", 16, PPO_VALUES), 20.0, 200_000),
    "sac/Pendulum-v1": Case(
        Work("sac", "Pendulum-v1", 4, {"hidden_sizes": [64, 64], "warmup_steps": 1000}), 12.0, 8_000
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="learning curves of each size; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of the rates of each size")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="one round, two seeds, few steps")
    options = parser.parse_args()
    with Pods() as pods:
        for name in options.cases.split(","):
            case = CASES[name]
            if options.quick:
                case = replace(case, rate_seconds=1.5, steps=case.steps // 8)
            measure_rates(pods, name, case, 1 if options.quick else options.rounds)
            seeds = min(2, options.seeds) if options.quick else options.seeds
            if seeds > 1:
                measure_returns(pods, name, case, seeds)


def measure_rates(pods: Pods, name: str, case: Case, rounds: int) -> None:
    """Prints the rates of both sizes, as ratios of each pair of runs."""
    measured: dict[Size, list[tuple[float, ...]]] = {size: [] for size in SIZES}
    for _ in range(rounds):
        for size in SIZES:
            # Off-policy agents warm up without updates, at another rate.
            work = replace(case.work, seconds=case.rate_seconds, warm_steps=2_000)
            measured[size].append(pods.all_rates(work, size.layout, _cpus(size)))
    for index, metric in enumerate(RATES):
        before, after = ([run[index] for run in measured[size]] for size in SIZES)
        ratios = [grown / alone for alone, grown in zip(before, after, strict=True)]
        pays = {"pays": statistics.median(ratios) > WORTH_GROWING} if metric != RATES[1] else {}
        _print(name, metric, statistics.median(after), statistics.median(before), ratios, **pays)


def measure_returns(pods: Pods, name: str, case: Case, seeds: int) -> None:
    """Prints the paired difference of the mean score over a run of equal environment steps."""
    found: dict[Size, list[float]] = {size: [] for size in SIZES}
    for seed in range(1, seeds + 1):
        for size in SIZES:
            work = replace(
                case.work,
                seed=seed,
                target_return=math.inf,
                every_steps=case.steps // SCORES,
                limit_steps=case.steps,
            )
            curve = pods.curve(work, size.layout, _cpus(size), 1200.0)
            found[size].append(statistics.fmean(score.mean_return for score in curve))
    before, after = (found[size] for size in SIZES)
    differences = [grown - alone for alone, grown in zip(before, after, strict=True)]
    low, high = t_interval(differences)
    _print(
        name,
        "mean_score_at_equal_steps",
        statistics.fmean(after),
        statistics.fmean(before),
        differences,
        interval=[round(low, 2), round(high, 2)],
        contains_zero=low <= 0 <= high,
    )


def t_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of paired differences by Student's t."""
    middle, count = statistics.fmean(differences), len(differences)
    margin = T_95.get(count, 2.0) * statistics.stdev(differences) / math.sqrt(count)
    return middle - margin, middle + margin


def _cpus(size: Size) -> list[int]:
    """Returns the processors of a pod; on a machine with too few, all of them."""
    return sorted(os.sched_getaffinity(0))[: size.cores]


def _print(name: str, metric: str, value: float, against: float, each: Sequence[float], **more: object) -> None:
    line = {
        "benchmark": "grown_agent",
        "case": name,
        "metric": metric,
        "value": round(value, 1),
        "against": "one core",
        "against_value": round(against, 1),
        "ratio": round(value / against, 3),
        "each": [round(one, 3) for one in each],
        "cores": len(os.sched_getaffinity(0)),
        **more,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
