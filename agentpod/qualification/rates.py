"""Measures steps per second: of simulators, of rollouts, of updates, and of a whole pod with the GPU's utilization.

Each rate has a bound that follows from the machine itself: its operations launched one after another, or the bytes that
they touch read and written at the bandwidth of the memory, whichever takes longer. A rate far below its bound waits for
something else, for instance for the host.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml
import torch

from agentpod.algorithms import make
from agentpod.experience.rollout import Lanes, collect, rollout_fields
from agentpod.qualification.bench import Bench, count, seconds_per_call, synchronize
from agentpod.qualification.operations import Counted, count_operations
from agentpod.qualification.primitives import memory_bandwidth
from agentpod.qualification.trial_pod import specification, trial_pod
from agentpod.qualification.trials import zeros
from podrace.errors import PodraceError, Unimplemented
from podrace.qualification.findings import Finding, Grade
from simulators import make as make_simulator

PART = "rates"
SHARE_OF_BOUND = 0.3
"""A rate below this share of its bound is slow."""
SHARE_OF_PARTS = 0.6
"""Share of the rate of rollouts and updates alone that a whole pod must reach."""
SHARE_OF_REFERENCE = 0.1
"""Share of a published rate, on another GPU, below which a rate is slow."""
SEED, HORIZON = 1, 32
HUMANOID = 5.7e6
"""Physics steps per second of MuJoCo Warp's humanoid on an RTX 6000 Ada, 8,192 worlds (its documentation)."""
HUMANOID_REFERENCE = "MuJoCo Warp: 5.7M physics steps/s (RTX 6000 Ada)"
END_TO_END_REFERENCE = "Isaac Lab Humanoid, PPO: 331k environment steps/s end to end (RTX 4090)"
ANT_REFERENCE = "Brax Ant: 6,000 in about 100 s on one GPU"


@dataclass(frozen=True)
class Rate:
    """Steps per second of something, with the bound that the machine sets."""

    name: str
    device: str
    lanes: int
    seconds: float
    """Of one step of all lanes, or of one update."""
    steps: int
    """Environment steps in that time."""
    counted: Counted | None = None
    """Operations in that time; None: they are not torch's, so only a published rate is compared with."""
    launch_seconds: float = 0.0
    bandwidth: float = 0.0
    """GB/s; 0: unknown."""
    published: float = 0.0
    """Published physics steps per second; 0: none."""
    substeps: int = 1
    """Physics steps of an environment step."""
    reference: str = ""
    utilization: float | None = None
    """Utilization of the GPU while the work was repeated, in percent; None: unknown."""


@dataclass(frozen=True)
class PodRate:
    """Steps per second of a whole pod."""

    device: str
    steps_per_second: float
    alone: float
    """Steps per second of rollouts and updates one after another, without a pod around them."""
    utilization: float | None
    """Mean utilization of the GPU in percent; None: unknown."""
    message: str = ""


@dataclass(frozen=True)
class SimulatorCase:
    """A simulator to measure."""

    id: str
    lanes: int
    quick_lanes: int
    substeps: int = 1
    published: float = 0.0
    reference: str = ""
    on_processors: bool = True
    """Whether a few lanes on the processor take its place; its kernels would be compiled for a minute otherwise."""


CASES = (
    SimulatorCase("cartpole", 65_536, 16_384),
    SimulatorCase("pendulum", 65_536, 16_384),
    SimulatorCase("acrobot", 65_536, 16_384),
    SimulatorCase("mountaincar", 65_536, 16_384),
    SimulatorCase("stocks", 16_384, 4096),
    SimulatorCase("spread", 16_384, 4096),
    SimulatorCase("tag", 16_384, 4096),
    SimulatorCase("game:connect-four", 16_384, 4096),
    SimulatorCase("warp:ant", 4096, 2048, 5, reference=ANT_REFERENCE, on_processors=False),
    SimulatorCase("warp:humanoid", 8192, 2048, 5, HUMANOID, HUMANOID_REFERENCE, on_processors=False),
    SimulatorCase("isaacgym:Ant", 4096, 2048, on_processors=False),
    SimulatorCase("isaaclab:Isaac-Humanoid-Direct-v0", 4096, 2048, reference=END_TO_END_REFERENCE, on_processors=False),
)
STAND_IN_LANES = 32
UTILIZATION_SECONDS = 1.5
"""Time for which work is repeated before the utilization is read: the driver's value covers up to a second."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades everything on the first device."""
    device = bench.devices[0]
    small = torch.zeros(1024, device=device)
    launch, bandwidth = seconds_per_call(lambda: small.add_(1.0), device, 500), memory_bandwidth(device)
    for case in CASES:
        yield from _simulator(bench, case, launch, bandwidth)
    rollout, update = measure_training(bench, launch, bandwidth)
    yield judge(rollout)
    yield judge(update)
    alone = rollout.steps / (rollout.seconds + update.seconds)
    yield judge_pod(asyncio.run(measure_pod(bench, alone)))


def _simulator(bench: Bench, case: SimulatorCase, launch: float, bandwidth: float) -> Iterator[Finding]:
    if not bench.gpus and not case.on_processors:
        yield Finding(PART, case.id, Grade.ABSENT, reference=case.reference, remedy="needs a GPU")
        return
    try:
        yield judge(measure_simulator(bench, case, launch, bandwidth))
    except Unimplemented as error:
        yield Finding(
            PART, case.id, Grade.ABSENT, error.message, reference=case.reference, remedy="install the package"
        )
    except PodraceError as error:
        remedy = f"train with environment.id = {case.id!r} alone, and read the log"
        yield Finding(PART, case.id, Grade.FAIL, error.message, reference=case.reference, remedy=remedy)


# --- judgement ---------------------------------------------------------------------------------------------------


def judge(found: Rate) -> Finding:
    """Grades a rate by the bound of the machine, and by a published rate if there is one. Pure."""
    rate = found.steps / found.seconds
    measured = f"{count(rate)} steps/s, {found.lanes} lanes"
    if found.utilization is not None:
        measured += f", GPU utilization {found.utilization:.0f} %"
    bounds = []
    least = found.counted.least_seconds(found.launch_seconds, found.bandwidth) if found.counted else 0.0
    if found.counted and least:
        bounds.append(SHARE_OF_BOUND * found.steps / least)
        measured += f", {found.counted.operations} operations, {found.seconds / least:.1f} times the least time"
    if found.published:
        bounds.append(SHARE_OF_REFERENCE * found.published / found.substeps)
        measured += f", {count(rate * found.substeps)} physics steps/s"
    slow = any(rate < bound for bound in bounds)
    expected = f"at least {count(max(bounds))} steps/s" if bounds else ""
    remedy = "another process uses the GPU, or the host is slow: see the part primitives" if slow else ""
    grade = Grade.SLOW if slow else Grade.PASS
    return Finding(PART, f"{found.name}, {found.device}", grade, measured, expected, found.reference, remedy)


def judge_pod(found: PodRate) -> Finding:
    """Grades the rate of a pod by that of its parts. Pure."""
    name = f"pod, PPO on cartpole, {found.device}"
    bound = SHARE_OF_PARTS * found.alone
    expected = f"at least {count(bound)} steps/s, {SHARE_OF_PARTS:.0%} of rollouts and updates alone"
    if not found.steps_per_second:
        remedy = f"read the log with `podrace qualify --part {PART} --debug`"
        return Finding(PART, name, Grade.FAIL, found.message, expected, END_TO_END_REFERENCE, remedy)
    used = "unknown" if found.utilization is None else f"{found.utilization:.0f} %"
    measured = f"{count(found.steps_per_second)} steps/s, GPU utilization {used}"
    slow = found.steps_per_second < bound
    remedy = "give the pod more cores (`pod.cores`), and check what else uses the CPU" if slow else ""
    return Finding(PART, name, Grade.SLOW if slow else Grade.PASS, measured, expected, END_TO_END_REFERENCE, remedy)


# --- measuring ---------------------------------------------------------------------------------------------------


def lanes_of(bench: Bench, case: SimulatorCase) -> int:
    """Returns the number of lanes to measure."""
    if not bench.gpus:
        return STAND_IN_LANES
    return case.quick_lanes if bench.quick else case.lanes


def measure_simulator(bench: Bench, case: SimulatorCase, launch: float, bandwidth: float) -> Rate:
    """Steps a simulator with random actions.

    Raises:
        Unimplemented: A package is missing.
    """
    device, lanes = bench.devices[0], lanes_of(bench, case)
    simulator = make_simulator(case.id, lanes, {}, device)
    space = simulator.action_space
    if space.kind == "discrete":
        action = torch.randint(space.n, (simulator.count,), device=device)
    else:
        action = torch.zeros(simulator.count, *space.shape, device=device)
    simulator.reset(SEED)
    # Kernels of Warp and of Isaac's simulators are not operations of torch.
    counted = None if ":" in case.id else count_operations(lambda: simulator.step(action))
    seconds = seconds_per_call(lambda: simulator.step(action), device, 20 if bench.quick else 100)
    used = utilization_of(bench, lambda: simulator.step(action))
    simulator.close()
    return Rate(
        case.id, device, lanes, seconds, lanes, counted, launch, bandwidth,
        published=case.published, substeps=case.substeps, reference=case.reference, utilization=used,
    )  # fmt: skip


def measure_training(bench: Bench, launch: float, bandwidth: float) -> tuple[Rate, Rate]:
    """Measures a rollout of PPO on CartPole, and the update with it."""
    device, lanes = bench.devices[0], lanes_of(bench, CASES[0]) // 8 or 4
    simulator = make_simulator("cartpole", lanes, {}, device)
    spaces = simulator.observation_space, simulator.action_space
    algorithm = make("ppo", *spaces, training_settings(lanes), SEED, device)
    rollout = zeros(rollout_fields(*spaces, HORIZON, lanes), device)
    start = Lanes.start(simulator.reset(SEED))
    generator = torch.Generator(device).manual_seed(SEED)

    def collected() -> None:
        with torch.no_grad():
            collect(simulator, algorithm.policy, rollout, start, generator)

    def updated() -> None:
        algorithm.update(rollout)

    rates = []
    for name, function in (("rollout, PPO on cartpole", collected), ("update, PPO on cartpole", updated)):
        counted = count_operations(function)
        seconds, steps = seconds_per_call(function, device, 3), HORIZON * lanes
        used = utilization_of(bench, function)
        rates.append(Rate(name, device, lanes, seconds, steps, counted, launch, bandwidth, utilization=used))
    return rates[0], rates[1]


def training_settings(lanes: int) -> Mapping[str, Any]:
    """Returns the hyperparameters of PPO that rollouts, updates and the pod are measured with."""
    return {"horizon": HORIZON, "minibatch_size": HORIZON * lanes // 4, "hidden_sizes": [64, 64]}


async def measure_pod(bench: Bench, alone: float) -> PodRate:
    """Trains in a fused pod for some seconds, and returns its rate in the second half of them."""
    device, lanes = bench.devices[0], lanes_of(bench, CASES[0]) // 8 or 4
    spec = specification(
        environment={"id": "cartpole", "count": lanes},
        algorithms={"ppo": {"hyperparameters": training_settings(lanes)}},
        assignment={"environment_steps": 10**12},
        evaluation={"episodes": 8, "every_environment_steps": 10**11},
        pod={"layout": "fused", "cores": 1, "gpus": min(1, len(bench.gpus))},
    )
    seconds = 30.0 if bench.gpus and not bench.quick else 8.0
    async with trial_pod(bench.folder / "pod", spec) as pod:
        mesh = pod.mesh
        await pod.until(lambda: mesh.trains or mesh.ended, 90.0)
        await pod.until(lambda: mesh.ended, seconds / 2)
        first, used = mesh.latest, list[float]()
        deadline = time.monotonic() + seconds / 2
        while time.monotonic() < deadline and pod.exit_code is None:
            used += [value for value in [utilization(bench)] if value is not None]
            await asyncio.sleep(0.5)
        last = mesh.latest
        message = mesh.message or "; ".join(pod.warnings()[-1:]) or "the pod did not train in time"
    if first is None or last is None or last.seconds <= first.seconds:
        return PodRate(device, 0.0, alone, None, message)
    rate = (last.environment_steps - first.environment_steps) / (last.seconds - first.seconds)
    return PodRate(device, rate, alone, sum(used) / len(used) if used else None, message)


def utilization_of(bench: Bench, function: Callable[[], object]) -> float | None:
    """Returns the utilization of the first GPU while a function is repeated, in percent; None if it is unknown."""
    if not bench.gpus:
        return None
    used, deadline = None, time.monotonic() + UTILIZATION_SECONDS
    while time.monotonic() < deadline:
        function()
        # Read before the wait, while the device has work.
        used = utilization(bench)
        synchronize(bench.devices[0])
    return used


def utilization(bench: Bench, nvml: Any = pynvml) -> float | None:
    """Returns the share of the last moment in which the first GPU computed, in percent; None if unknown.

    Instances of a partitioned GPU do not report it.
    """
    if not bench.gpus:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(bench.gpus[0].uuid)
        return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        return None
