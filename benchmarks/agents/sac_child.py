"""Measures whether a child of a SAC agent loses anything that its parent would have kept by continuing.

For each seed a parent is trained. Then the parent continues, and children start from its checkpoint with unchanged
hyperparameters: with the whole replay memory, without one, and with a sample of it (`assignment.replay_bytes`; a sample
of fewer than 8,000 steps is not stored). All are evaluated on the same episodes, and the difference of a child to the
parent's continuation is taken episode by episode. For comparison, a copy of the parent continues with other random
numbers (`copy`): it loses nothing. Prints one JSON object per line: one for each child and number of steps, then a
summary over the seeds.

    within_2_errors   seeds in which the child is at most 2 standard errors of its paired difference below the parent
    mean_difference   mean of the differences over the seeds, with its standard error

    python -m benchmarks.agents.sac_child [--quick] [--seeds 8] [--steps 10000]
    python -m benchmarks.agents.sac_child --steps 40000 --updates-per-step 0.25 --sample 0.25
"""

import argparse
import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.off_policy.agent import Agent, Checkpoint, Setup
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.store import CheckpointStore
from podrace.telemetry import TelemetryConfig, configure_logging

EPISODES = 64
EVALUATION_SEED = 12345
MARKS = (250, 1000, 2000)
"""Environment steps after the checkpoint at which parent and children are evaluated."""
SETUP = Setup(
    "pendulum",
    4,
    "sac",
    {
        "hidden_sizes": [64, 64],
        "batch_size": 128,
        "learning_rate": 3e-4,
        "warmup_steps": 1000,
        "replay_capacity": 60_000,
    },
)


def evaluated(agent: Agent, marks: tuple[int, ...]) -> dict[int, Tensor]:
    """Trains an agent and returns its returns [EPISODES] at each mark."""
    found, before = {}, agent.steps
    for mark in marks:
        agent.train(before + mark - agent.steps)
        found[mark] = agent.returns(EPISODES, EVALUATION_SEED)
    agent.close()
    return found


def children(parent: Agent, store: CheckpointStore, sample: float, seed: int) -> Iterator[tuple[str, Agent, int]]:
    """Starts the children of a parent; yields a name, the child, and the steps of replay memory that it has."""
    yield "copy", parent.copy(seed), parent.replay.size
    whole = parent.checkpoint(store)
    starts = {"whole": whole, "none": Checkpoint(whole.parts, (), 0)}
    if sample:
        starts["sample"] = parent.checkpoint(store, int(sample * sum(part.size_bytes for part in whole.replay)))
    for name, start in starts.items():
        child = Agent(parent.setup, seed, start=start, store=store)
        yield name, child, child.replay.size


def run(setup: Setup, seed: int, steps: int, sample: float, marks: tuple[int, ...]) -> Iterator[dict[str, object]]:
    """Trains a parent and its children; yields one result for each child and mark."""
    parent = Agent(setup, seed)
    parent.train(steps)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"folder://{folder}")
        before = float(parent.returns(EPISODES, EVALUATION_SEED).mean())
        born = list(children(parent, store, sample, seed + 10_000))
    continued = evaluated(parent, marks)
    for name, child, replay_steps in born:
        for mark, returns in evaluated(child, marks).items():
            difference = returns - continued[mark]
            yield {
                "benchmark": "sac_child",
                "seed": seed,
                "memory": name,
                "replay_steps": replay_steps,
                "parent_steps": steps,
                "steps": mark,
                "score_before": round(before, 2),
                "score": round(float(returns.mean()), 2),
                "parent_score": round(float(continued[mark].mean()), 2),
                "difference": round(float(difference.mean()), 3),
                "standard_error": round(float(difference.std()) / math.sqrt(EPISODES), 3),
            }


def summarize(lines: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Yields one summary for each kind of child and mark."""
    groups: defaultdict[tuple[object, object], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        pair = float(str(line["difference"])), float(str(line["standard_error"]))
        groups[line["memory"], line["steps"]].append(pair)
    for (memory, steps), found in groups.items():
        differences = [difference for difference, _ in found]
        spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
        yield {
            "benchmark": "sac_child",
            "memory": memory,
            "steps": steps,
            "seeds": len(found),
            "within_2_errors": sum(difference >= -2 * error for difference, error in found),
            "mean_difference": round(statistics.mean(differences), 3),
            "standard_error": round(spread / math.sqrt(len(differences)), 3),
            "worst_difference": min(differences),
        }


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Compares children of SAC agents with their parents' continuation.")
    parser.add_argument("--quick", action="store_true", help="one seed, 2,000 steps")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of a parent")
    parser.add_argument("--updates-per-step", type=float, default=1.0)
    parser.add_argument(
        "--sample", type=float, default=0.0, help="part of the memory that the sample may have; 0: none"
    )
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    torch.set_num_threads(1)
    setup = replace(SETUP, hyperparameters={**SETUP.hyperparameters, "updates_per_step": options.updates_per_step})
    seeds, steps = (1, 2000) if options.quick else (options.seeds, options.steps)
    lines = []
    for seed in range(seeds):
        for line in run(setup, seed, steps, options.sample, MARKS[:2] if options.quick else MARKS):
            print(json.dumps(line), flush=True)
            lines.append(line)
    for summary in summarize(lines):
        print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
