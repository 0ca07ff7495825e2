"""Measures the bodies on MuJoCo Warp by number of lanes: environment steps per second, the physics alone, memory.

Random actions are drawn in advance. Prints one JSON object per line; `against` is the same physics kernels alone.

    python benchmarks/warp_simulator.py [--quick] [--device cuda] [--lanes 4096 65536]
"""

import argparse
import json
import statistics
import time

import psutil
import torch

from simulators import make
from simulators.warp.simulator import WarpSimulator

CASES = [("ant", "gymnasium"), ("ant", "isaac"), ("humanoid", "gymnasium"), ("humanoid", "isaac")]
LANES = {"cpu": [16, 128, 512], "cuda": [4096, 16384, 65536]}
ACTIONS = 16
"""Number of batches of actions, which are repeated."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Gymnasium's ant, two numbers of lanes: under a minute")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lanes", type=int, nargs="+", help="numbers of lanes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lanes = options.lanes or LANES[torch.device(options.device).type]
    repetitions, seconds = (2, 1.0) if options.quick else (5, 2.0)
    for body, style in CASES[:1] if options.quick else CASES:
        for count in lanes[:2] if options.quick else lanes:
            measure(body, style, count, options.device, repetitions, seconds)


def measure(body: str, style: str, count: int, device: str, repetitions: int, seconds: float) -> None:
    """Prints the results of one case."""
    before = used_bytes(device)
    simulator = make(f"warp:{body}", count, {"style": style}, device)
    assert isinstance(simulator, WarpSimulator)
    simulator.reset(0)
    (high, *_) = simulator.action_space.high or ()
    actions = ((torch.rand(ACTIONS, count, *simulator.action_space.shape) * 2 - 1) * high).to(device)

    def step_environment(number: int) -> None:
        simulator.step(actions[number % ACTIONS])

    state = [getattr(simulator.physics.fields, name) for name in ("qpos", "qvel", "qacc_warmstart")]
    kept = [values.clone() for values in state]

    def step_physics(number: int) -> None:
        # From states of a normal run: without resets the bodies would lie down, with more contacts.
        for values, kept_values in zip(state, kept, strict=True):
            values.copy_(kept_values)
        simulator.physics.step()

    steps: list[float] = []
    physics: list[float] = []
    for _ in range(repetitions):
        steps.append(count * repeats_per_second(step_environment, device, seconds))
        kept = [values.clone() for values in state]
        physics.append(count * repeats_per_second(step_physics, device, seconds))
    value, alone = statistics.median(steps), statistics.median(physics)
    case = f"warp:{body}/{style}/{count}/{device}"
    line = {"value": round(value), "unit": "1/s", "against": "its physics alone", "against_value": round(alone)}
    report(case, "steps_per_second", **line, ratio=round(value / alone, 3))
    report(case, "memory_bytes", value=used_bytes(device) - before, unit="B")
    simulator.close()


def report(case: str, metric: str, **rest: object) -> None:
    print(json.dumps({"benchmark": "warp_simulator", "case": case, "metric": metric, **rest}), flush=True)


def used_bytes(device: str) -> int:
    """Returns the used memory of the whole GPU, or of this process."""
    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return psutil.Process().memory_info().rss


def repeats_per_second(repeat, device: str, seconds: float) -> float:
    def wait() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    for number in range(ACTIONS):
        repeat(number)
    wait()
    repeats, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for number in range(ACTIONS):
            repeat(number)
        wait()
        repeats += ACTIONS
    return repeats / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
