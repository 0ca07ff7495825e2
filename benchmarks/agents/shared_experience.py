"""Measures what off-policy agents gain from the experience of each other (`experience.shared`).

Tournaments of SAC and TD3 agents run with and without sharing, alternating, with the same seeds and so the same
hyperparameters. The strategy is random search: no agent starts from another, so only shared steps connect them. With
`--single`, one SAC agent with all the environment steps of a tournament, and as many updates per step, runs as well.
    steps_to_target  environment steps of all agents together until a score first reaches the target; twice the budget
                     if none does
    mean_score       mean over all scores of all agents: the area under their learning curves
    champion         score of the champion on episodes that were not used for selection
Each line also has the best score so far by environment steps of all agents together (`curve`). Differences are paired
by seed, with a 95 % interval of Student's t.

    python -m benchmarks.agents.shared_experience [--seeds 5] [--task pendulum] [--pods 2] [--single] [--folder F]
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import podrace
from benchmarks.agents.grown_agent import t_interval
from podrace.api.records import Candidate

METRICS = ("steps_to_target", "mean_score", "champion")
WITHOUT, SHARED, SINGLE = "without", "shared", "single"
CORES = 2
"""Of all pods of a tournament together."""


@dataclass(frozen=True)
class Task:
    """What is trained, and for how long."""

    environment: str
    target: float
    budget_steps: int
    """Environment steps of all agents together."""
    agents: int
    every_steps: int
    hidden: Sequence[int]


TASKS = {
    "pendulum": Task("pendulum", -200.0, 24_000, 4, 500, (64, 64)),
    "hopper": Task("gym:Hopper-v5", 1_000.0, 120_000, 4, 3_000, (256, 256)),
    "half-cheetah": Task("gym:HalfCheetah-v5", 2_000.0, 120_000, 4, 3_000, (256, 256)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1, help="the others follow it; default: 1")
    parser.add_argument("--task", choices=sorted(TASKS), default="pendulum")
    parser.add_argument("--pods", type=int, default=2, help="pods that share two cores; default: 2")
    parser.add_argument("--single", action="store_true", help="also one SAC agent with all environment steps")
    parser.add_argument("--folder", type=Path, help="keeps the homes of the runs; default: a temporary folder")
    options = parser.parse_args()
    contenders = (WITHOUT, SHARED, SINGLE) if options.single else (WITHOUT, SHARED)
    task, found = TASKS[options.task], {name: list[dict[str, float]]() for name in contenders}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for name in contenders:
                home = folder / f"{options.task}-{seed}-{name}"
                metrics, curve = measure(task, specification(task, seed, name, options.pods), home)
                found[name].append(metrics)
                line = {"task": options.task, "seed": seed, "contender": name, **metrics, "curve": curve}
                print(json.dumps(line), flush=True)
    for metric in METRICS:
        for name in contenders[1:]:
            values, others = ([one[metric] for one in found[each]] for each in (WITHOUT, name))
            print(json.dumps({"metric": metric, "contender": name, **comparison(values, others)}), flush=True)


def measure(task: Task, spec: dict[str, Any], home: Path) -> tuple[dict[str, float], list[tuple[int, float]]]:
    """Runs one tournament; returns METRICS, and the best score so far by environment steps of all agents together."""
    with podrace.open_home(home) as mesh:
        tournament = mesh.train(spec)
        tournament.wait(progress=False)
        scores = sorted(tournament.candidates(all_submissions=True), key=lambda one: one.submit_time)
        champion = tournament.champion()
    curve = curve_of(scores)
    metrics = {
        "steps_to_target": next((steps for steps, best in curve if best >= task.target), 2 * task.budget_steps),
        "mean_score": round(statistics.fmean(one.score for one in scores), 1),
        "champion": round(champion.score, 1),
    }
    return metrics, curve


def specification(task: Task, seed: int, contender: str, pods: int) -> dict[str, Any]:
    """Returns the specification of a contender, as nested values."""
    values = {"hidden_sizes": list(task.hidden), "learning_rate": 1e-3}
    single = contender == SINGLE
    pods, agents = (1, 1) if single else (pods, task.agents)
    return {
        "seed": seed,
        "environment": {"id": task.environment, "count": 4},
        "algorithms": {name: {"hyperparameters": values} for name in (("sac",) if single else ("sac", "td3"))},
        "objective": {"environment_steps": task.budget_steps},
        "pool": {"minimum_pods": pods, "maximum_pods": pods},
        "pod": {"cores": 1.0 if single else CORES / pods},
        "assignment": {"environment_steps": task.budget_steps // agents},
        "evaluation": {
            "every_environment_steps": task.every_steps,
            "episodes": 16,
            "racing": False,
            "share": 1.0,
        },
        "evolution": {"strategy": "random-search"},
        "experience": {"shared": contender == SHARED},
    }


def curve_of(scores: Sequence[Candidate]) -> list[tuple[int, float]]:
    """Returns the scored steps of all agents together and the best score so far, after each score that is the best."""
    trained: dict[str, int] = {}
    curve: list[tuple[int, float]] = []
    for one in scores:
        trained[one.agent_id] = one.agent_environment_steps
        if not curve or one.score > curve[-1][1]:
            curve.append((sum(trained.values()), round(one.score, 1)))
    return curve


def comparison(without: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Returns the mean of a contender and of tournaments without sharing, and the paired difference."""
    differences = [one - own for own, one in zip(without, others, strict=True)]
    low, high = t_interval(differences) if len(differences) > 1 else (-math.inf, math.inf)
    return {
        "without": round(statistics.fmean(without), 1),
        "mean": round(statistics.fmean(others), 1),
        "difference": round(statistics.fmean(differences), 1),
        "interval": [round(low, 1), round(high, 1)],
    }


if __name__ == "__main__":
    main()
