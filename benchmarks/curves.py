"""Records learning curves of long training: return against environment steps and seconds, one agent in one process.

    python benchmarks/curves.py ppo/Ant-v5 --steps 5000000 --folder curves

Every evaluation is printed as a JSON object on one line, and appended to a file of the case. The state is saved with
it: when started again, a case resumes, and its seconds include earlier runs (a replay buffer starts empty and warms up
again). The settings of CASES were found by hand; `--set name=value` (JSON) changes one.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from loops.own import Loop
from loops.process import Request

from agentpod.learner.checkpoint_files import Counters, freeze, restore

MUJOCO_PPO = {
    "learning_rate": 3e-4,
    "horizon": 128,
    "epochs": 4,
    "minibatch_size": 512,
    "hidden_sizes": [64, 64],
    "initial_log_std": -0.5,
    "entropy_coefficient": 0.0,
}
MUJOCO_SAC = {"hidden_sizes": [256, 256], "batch_size": 256, "warmup_steps": 10_000, "updates_per_step": 1.0}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "ppo/HalfCheetah-v5": (16, MUJOCO_PPO),
    "ppo/Ant-v5": (16, MUJOCO_PPO),
    "ppo/Humanoid-v5": (16, MUJOCO_PPO),
    "sac/HalfCheetah-v5": (8, MUJOCO_SAC),
    "sac/Ant-v5": (8, MUJOCO_SAC),
    "sac/Humanoid-v5": (8, MUJOCO_SAC),
}
"""Number of parallel environments, and hyperparameters."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument(
        "--steps", type=int, default=1_000_000, help="environment steps, including those of earlier runs"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every-steps", type=int, default=100_000, help="environment steps between two evaluations")
    parser.add_argument("--folder", type=Path, default=Path("curves"), help="folder for curves and states")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count, settings = CASES[options.case]
    changed = {name: json.loads(value) for name, _, value in (item.partition("=") for item in options.set)}
    algorithm, _, environment = options.case.partition("/")
    simulator = f"mujoco:{environment}"
    request = Request("rate", algorithm, simulator, count, {**settings, **changed}, options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    train(request, options.steps, options.every_steps, options.folder / f"{algorithm}-{environment}-{options.seed}")


def train(request: Request, steps: int, every_steps: int, path: Path) -> None:
    """Trains up to `steps`, evaluating every `every_steps`; writes curve and state to files next to `path`."""
    with torch.no_grad():
        loop = Loop(request)
        seconds = _resume(loop, path)
        due = (loop.steps // every_steps + 1) * every_steps
        began = time.monotonic()
        while loop.steps < steps:
            loop.advance()
            if loop.steps >= min(due, steps):
                due += every_steps
                trained = seconds + time.monotonic() - began
                paused = time.monotonic()
                _record(loop, request, trained, path)
                began += time.monotonic() - paused
        loop.close()


def _record(loop: Loop, request: Request, seconds: float, path: Path) -> None:
    line = {
        "benchmark": "curves",
        "case": f"{request.algorithm}/{request.environment.removeprefix('mujoco:')}",
        "seed": request.seed,
        "steps": loop.steps,
        "seconds": round(seconds, 1),
        "metric": "mean_return",
        "value": round(loop.evaluate(request.environment), 1),
    }
    print(json.dumps(line), flush=True)
    with path.with_suffix(".jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    frozen = freeze(loop.algorithm, Counters(environment_steps=loop.steps, training_seconds=seconds))
    state = {"parts": frozen.parts(), "steps": loop.steps, "seconds": seconds}
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.rename(path.with_suffix(".state"))


def _resume(loop: Loop, path: Path) -> float:
    """Restores a saved state, if there is one; returns its seconds of training."""
    saved = path.with_suffix(".state")
    if not saved.exists():
        return 0.0
    state = torch.load(saved)
    restore(loop.algorithm, state["parts"])
    loop.steps = state["steps"]
    return float(state["seconds"])


if __name__ == "__main__":
    main()
