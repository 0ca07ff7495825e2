"""Measures which share of an off-policy agent's training time is spent on storing its replay memory.

An agent trains on one thread. At regular intervals, another thread stores its memory incrementally, as a pod does when
a policy was scored; the networks are not stored. Prints one JSON object per line.

    path_share     time for which the training waits (the view of the memory, with a copy of its priorities), divided by
                   wall-clock time
    thread_share   processor time of the storing thread, divided by that of the process: what the training loses in
                   addition on a single core
    share          both together
    stored_bytes_per_step   bytes stored by environment step, repeated pieces included

    python -m benchmarks.agents.replay_share [--quick] [--steps 20000] [--every 2000]
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from agentpod.experience.replay_view import ReplayView
from agentpod.learner.replay_files import ReplayFiles
from benchmarks.off_policy.agent import Agent, Setup
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.store import CheckpointStore
from podrace.telemetry import TelemetryConfig, configure_logging

SAC = {"hidden_sizes": [256, 256], "batch_size": 256, "replay_capacity": 1_000_000, "warmup_steps": 1000}
CASES = {
    "pendulum": Setup("pendulum", 4, "sac", SAC),
    "pendulum, few updates": Setup("pendulum", 16, "sac", SAC | {"horizon": 8, "updates_per_step": 1 / 32}),
    "halfcheetah": Setup("HalfCheetah-v5", 4, "sac", SAC),
    "halfcheetah, few updates": Setup("HalfCheetah-v5", 16, "sac", SAC | {"horizon": 8, "updates_per_step": 1 / 32}),
    "halfcheetah, prioritized": Setup("HalfCheetah-v5", 4, "sac", SAC | {"prioritized": True}),
}


@dataclass
class Spent:
    """Times in seconds, and bytes."""

    wall: float = 0.0
    processor: float = 0.0
    path: float = 0.0
    thread: float = 0.0
    stored_bytes: int = 0


def store(files: ReplayFiles, view: ReplayView, spent: Spent) -> None:
    """Stores a memory in the storing thread."""
    begin, known = time.thread_time(), {piece.part.digest for piece in files._known.values()}
    stored = files.store(view)
    files.published(stored)
    spent.thread += time.thread_time() - begin
    spent.stored_bytes += sum(part.size_bytes for part in stored.parts if part.digest not in known)


def measure(setup: Setup, steps: int, every: int, checkpoints: CheckpointStore) -> Spent:
    """Trains an agent for `steps` steps after its warm-up, and stores its memory every `every` steps."""
    agent, files, spent = Agent(setup, seed=1), ReplayFiles(checkpoints, 2**50), Spent()
    agent.train(2 * setup.hyperparameters["warmup_steps"])
    with ThreadPoolExecutor(1) as pool:
        storing: Future[None] = pool.submit(store, files, ReplayView.of(agent.replay), Spent())
        storing.result()
        begin, processor, first = time.perf_counter(), time.process_time(), agent.steps
        while agent.steps - first < steps:
            agent.train(every)
            now = time.perf_counter()
            storing.result()
            view = ReplayView.of(agent.replay)
            spent.path += time.perf_counter() - now
            storing = pool.submit(store, files, view, spent)
        spent.wall = time.perf_counter() - begin
        storing.result()
        spent.processor = time.process_time() - processor
    agent.close()
    return spent


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Measures the share of training time that replay memories take.")
    parser.add_argument("--quick", action="store_true", help="4,000 steps of Pendulum")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=2_000, help="environment steps between two stored memories")
    options = parser.parse_args()
    configure_logging(TelemetryConfig(log_level="error"))
    torch.set_num_threads(1)
    for case, setup in CASES.items():
        if options.quick and not case.startswith("pendulum"):
            continue
        steps = 4000 if options.quick else options.steps
        with tempfile.TemporaryDirectory() as folder:
            spent = measure(setup, steps, options.every, open_store(f"folder://{folder}"))
        line = {
            "benchmark": "replay_share",
            "case": case,
            "steps": steps,
            "every_steps": options.every,
            "path_share": round(spent.path / spent.wall, 5),
            "thread_share": round(spent.thread / spent.processor, 5),
            "share": round(spent.path / spent.wall + spent.thread / spent.processor, 5),
            "steps_per_second": round(steps / spent.wall, 1),
            "stored_bytes_per_step": round(spent.stored_bytes / steps, 1),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
