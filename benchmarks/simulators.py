"""Measures environment steps per second of every simulator, and of Gymnasium's SyncVectorEnv and EnvPool's interface.

All cases of a task alternate in one run, with random actions drawn in advance; the value is the median of the rounds.
Prints one JSON object per line. Cases that need a missing package are skipped, with a message on stderr.

    python benchmarks/simulators.py [--quick] [--device cuda:0] [--only ant,cartpole]

On a GPU, only simulators that run there are measured, with 4,096 to 65,536 environments.
"""

import sys
from importlib import import_module
from pathlib import Path

# This file has the name of the package simulators, and would be imported instead of it.
_before = list(sys.path)
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
if __name__ != "__main__":
    del sys.modules[__name__]
    import_module(__name__)
    sys.path[:] = _before

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from podrace.errors import PodraceError
from simulators import make

BASELINE_LANES = 8
HORIZON = 16
REFERENCE = "gymnasium.SyncVectorEnv"
Play = Callable[[], None]
"""Makes HORIZON steps."""


@dataclass(frozen=True)
class Task:
    """A task with all the cases that simulate it."""

    gymnasium_id: str
    """Id for SyncVectorEnv and EnvPool; empty: they do not have it."""
    ours: Mapping[str, tuple[str, int, Mapping[str, Any]]]
    """Id, number of environments and options of podrace's simulators, by name of the case."""
    envpool_lanes: int = 0
    """Number of environments of EnvPool's interface; 0: EnvPool does not have the task."""


def mujoco(task: str) -> Task:
    return Task(
        task,
        {
            f"mujoco:{task}/64": (f"mujoco:{task}", 64, {}),
            f"envpool:{task}/64": (f"envpool:{task}", 64, {}),
            f"gym:{task}/16": (f"gym:{task}", 16, {}),
            f"gym:{task}/16 in 2 processes": (f"gym:{task}", 16, {"processes": 2}),
        },
        64,
    )


def classic(ours: str, task: str, envpool_lanes: int = 64) -> Task:
    cases = {f"{ours}/{lanes}": (ours, lanes, {}) for lanes in (16, 4096)}
    return Task(task, cases | {f"gym:{task}/16": (f"gym:{task}", 16, {})}, envpool_lanes)


TASKS: dict[str, Task] = {
    "ant": mujoco("Ant-v5"),
    "humanoid": mujoco("Humanoid-v5"),
    "halfcheetah": mujoco("HalfCheetah-v5"),
    "hopper": mujoco("Hopper-v5"),
    "walker2d": mujoco("Walker2d-v5"),
    "cartpole": classic("cartpole", "CartPole-v1"),
    "pendulum": classic("pendulum", "Pendulum-v1"),
    "acrobot": classic("acrobot", "Acrobot-v1"),
    "mountaincar": classic("mountaincar", "MountainCar-v0"),
    "stocks": Task("", {"stocks/2048": ("stocks", 2048, {"episode_days": 126})}),
    "breakout": Task("", {"atari:Breakout/16": ("atari:Breakout", 16, {})}),
    "warp": Task("", {"warp:ant/512": ("warp:ant", 512, {}), "warp:humanoid/512": ("warp:humanoid", 512, {})}),
}
GPU_LANES = (4096, 16384, 65536)
GPU_TASKS = {
    name: Task("", {f"{id}/{lanes}": (id, lanes, options) for lanes in GPU_LANES})
    for name, id, options in (
        ("cartpole", "cartpole", {}),
        ("pendulum", "pendulum", {}),
        ("acrobot", "acrobot", {}),
        ("mountaincar", "mountaincar", {}),
        ("stocks", "stocks", {"episode_days": 126}),
        ("ant", "warp:ant", {}),
        ("humanoid", "warp:humanoid", {}),
    )
}


# --- simulators ----------------------------------------------------------------------------------------------------


def simulator(resources: ExitStack, id: str, count: int, options: Mapping[str, Any], device: str) -> Play:
    """Makes one of podrace's simulators."""
    made = make(id, count, options, device, seed=0)
    resources.callback(made.close)
    space = made.action_space
    if space.kind == "discrete":
        actions = torch.randint(space.n, (HORIZON, count), device=device)
    else:
        actions = torch.rand(HORIZON, count, *space.shape, device=device) * 2 - 1

    def play() -> None:
        for action in actions:
            made.step(action)
        if device != "cpu":
            torch.cuda.synchronize()

    return play


def sync_vector_env(resources: ExitStack, id: str) -> Play:
    """Makes Gymnasium's vector environment, as in its documentation."""
    made = gymnasium.make_vec(id, num_envs=BASELINE_LANES, vectorization_mode="sync")
    resources.callback(made.close)
    made.reset(seed=0)
    actions = [made.action_space.sample() for _ in range(HORIZON)]
    return partial(_step_all, made, actions)


def envpool(resources: ExitStack, id: str, lanes: int) -> Play:
    """Makes EnvPool's synchronous interface with two threads and its own automatic resets."""
    import envpool as package

    made = package.make(id, env_type="gymnasium", num_envs=lanes, num_threads=2, seed=0)
    resources.callback(made.close)
    made.reset()
    actions = [np.stack([made.action_space.sample() for _ in range(lanes)]) for _ in range(HORIZON)]
    return partial(_step_all, made, actions)


def _step_all(environment: Any, actions: list[Any]) -> None:
    for action in actions:
        environment.step(action)


# --- measurement ---------------------------------------------------------------------------------------------------


def measure(task: Task, seconds: float, rounds: int, device: str) -> dict[str, float]:
    """Returns environment steps per second by name, measured in turns of `seconds`."""
    with ExitStack() as resources:
        players: dict[str, tuple[Play, int]] = {}
        makers: dict[str, tuple[Callable[[], Play], int]] = {
            name: (partial(simulator, resources, id, lanes, options, device), lanes)
            for name, (id, lanes, options) in task.ours.items()
        }
        if task.gymnasium_id and device == "cpu":
            makers[REFERENCE] = partial(sync_vector_env, resources, task.gymnasium_id), BASELINE_LANES
            if task.envpool_lanes:
                make_pool = partial(envpool, resources, task.gymnasium_id, task.envpool_lanes)
                makers[f"envpool/{task.envpool_lanes}"] = make_pool, task.envpool_lanes
        for name, (maker, lanes) in makers.items():
            try:
                players[name] = maker(), lanes
            except (PodraceError, ImportError) as error:
                print(f"skipped: {name}: {error}", file=sys.stderr)
        rates: dict[str, list[float]] = {name: [] for name in players}
        for play, _ in players.values():
            play()
        for _ in range(rounds):
            for name, (play, lanes) in players.items():
                rates[name].append(lanes * HORIZON * _repeats_per_second(play, seconds))
    return {name: statistics.median(measured) for name, measured in rates.items()}


def _repeats_per_second(play: Play, seconds: float) -> float:
    repeats, began = 0, time.perf_counter()
    while True:
        play()
        repeats += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return repeats / elapsed


def report(task: str, rates: Mapping[str, float]) -> None:
    """Prints a line for each pair of a simulator and a reference."""
    references = [name for name in rates if name == REFERENCE or name.startswith("envpool/")]
    for name, rate in rates.items():
        for against in references or [""]:
            if name in references:
                continue
            line = {
                "benchmark": "simulators",
                "case": f"{task}/{name}",
                "metric": "environment_steps_per_second",
                "value": float(f"{rate:.4g}"),
                "unit": "1/s",
            }
            if against:
                line |= {
                    "against": against,
                    "against_value": float(f"{rates[against]:.4g}"),
                    "ratio": float(f"{rate / rates[against]:.4g}"),
                }
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ant, cartpole and stocks, in a few seconds")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="tasks, separated by commas")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="gymnasium")
    # For batches of this size, more threads cause stalls without a gain in speed.
    torch.set_num_threads(1)
    tasks = TASKS if options.device == "cpu" else GPU_TASKS
    chosen = options.only.split(",") if options.only else ["ant", "cartpole", "stocks"] if options.quick else tasks
    seconds, rounds = (0.3, 3) if options.quick else (1.0, 7)
    for name in chosen:
        if name not in tasks:
            raise SystemExit(f"error: --only: unknown task {name!r} (tasks: {', '.join(tasks)})")
        report(name, measure(tasks[name], seconds, rounds, options.device))


if __name__ == "__main__":
    main()
