"""Measures what off-policy agents gain from the experience of each other (`experience.shared`).

Tournaments of SAC and TD3 agents with two pods run with and without sharing, alternating, with the same seeds and so
the same hyperparameters. The strategy is random search: no agent starts from another, so only shared steps connect
them.
    steps_to_target  environment steps of all agents together until a score first reaches the target; twice the budget
                     if none does
    mean_score       mean over all scores of all agents: the area under their learning curves
    champion         score of the champion on episodes that were not used for selection
Differences are paired by seed, with a 95 % interval of Student's t.

    python -m benchmarks.agents.shared_experience [--seeds 5] [--task pendulum] [--folder F]
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
    parser.add_argument("--task", choices=sorted(TASKS), default="pendulum")
    parser.add_argument("--folder", type=Path, help="keeps the homes of the runs; default: a temporary folder")
    options = parser.parse_args()
    task, found = TASKS[options.task], dict[bool, list[dict[str, float]]]({False: [], True: []})
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for seed in range(1, options.seeds + 1):
            for shared in (False, True):
                result = measure(task, seed, shared=shared, home=folder / f"{options.task}-{seed}-{shared}")
                found[shared].append(result)
                print(json.dumps({"task": options.task, "seed": seed, "shared": shared, **result}), flush=True)
    for metric in METRICS:
        without, with_others = ([one[metric] for one in found[shared]] for shared in (False, True))
        print(json.dumps({"metric": metric, **comparison(without, with_others)}), flush=True)


def measure(task: Task, seed: int, *, shared: bool, home: Path) -> dict[str, float]:
    """Runs one tournament; returns METRICS."""
    with podrace.open_home(home) as mesh:
        tournament = mesh.train(specification(task, seed, shared=shared))
        tournament.wait(progress=False)
        scores = sorted(tournament.candidates(all_submissions=True), key=lambda one: one.submit_time)
        champion = tournament.champion()
    return {
        "steps_to_target": steps_to(task, scores),
        "mean_score": round(statistics.fmean(one.score for one in scores), 1),
        "champion": round(champion.score, 1),
    }


def specification(task: Task, seed: int, *, shared: bool) -> dict[str, Any]:
    """Returns the specification of a tournament, as nested values."""
    values = {"hidden_sizes": list(task.hidden), "learning_rate": 1e-3}
    return {
        "seed": seed,
        "environment": {"id": task.environment, "count": 4},
        "algorithms": {name: {"hyperparameters": values} for name in ("sac", "td3")},
        "objective": {"environment_steps": task.budget_steps},
        "pool": {"minimum_pods": 2, "maximum_pods": 2},
        "assignment": {"environment_steps": task.budget_steps // task.agents},
        "evaluation": {
            "every_environment_steps": task.every_steps,
            "episodes": 16,
            "racing": False,
            "share": 1.0,
        },
        "evolution": {"strategy": "random-search"},
        "experience": {"shared": shared},
    }


def steps_to(task: Task, scores: Sequence[Candidate]) -> int:
    """Returns the steps of all agents, as far as scored, when the first score reached the target."""
    trained: dict[str, int] = {}
    for one in scores:
        trained[one.agent_id] = one.agent_environment_steps
        if one.score >= task.target:
            return sum(trained.values())
    return 2 * task.budget_steps


def comparison(without: Sequence[float], with_others: Sequence[float]) -> dict[str, Any]:
    """Returns both means and the paired difference with its interval."""
    differences = [shared - own for own, shared in zip(without, with_others, strict=True)]
    low, high = t_interval(differences) if len(differences) > 1 else (-math.inf, math.inf)
    return {
        "without": round(statistics.fmean(without), 1),
        "shared": round(statistics.fmean(with_others), 1),
        "difference": round(statistics.fmean(differences), 1),
        "interval": [round(low, 1), round(high, 1)],
    }


if __name__ == "__main__":
    main()
