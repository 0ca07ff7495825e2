"""Compares simulators that replay a CUDA graph with eager ones, on the first and the last GPU.

A capture on another device than the current one gives an empty graph, which replays without an error and changes
nothing. So the trajectories are compared, and the nodes of the graph are counted.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentpod.qualification.bench import Bench, seconds_per_call
from podrace.errors import PodraceError, Unimplemented
from podrace.qualification.findings import Finding, Grade
from simulators.base import Simulator, Step
from simulators.classic import ClassicOnDevice
from simulators.classic_tasks import TASKS
from simulators.cuda_graph import CudaGraphSimulator, record_graph
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions

PART = "graphs"
LANES, STEPS, SEED = 256, 60, 7
SPEEDUP = 1.5
"""A captured step must be at least this many times as fast as an eager one."""
UNKNOWN_NODES = -1
Made = tuple[Simulator, torch.Generator]


@dataclass(frozen=True)
class Captured:
    """A captured simulator against an eager one."""

    simulator: str
    device: str
    equal: bool
    """Whether all steps were equal, bit by bit."""
    nodes: int
    """Nodes of the graph; UNKNOWN_NODES if they could not be counted."""
    synchronizes: str
    """What made a step wait for the device; empty if nothing did."""
    eager_seconds: float
    """Of a step of LANES lanes."""
    captured_seconds: float


def cartpole(device: str) -> Made:
    """Makes CartPole as tensors on a device, the processor included."""
    task = TASKS["cartpole"]()
    simulator = ClassicOnDevice(task, LANES, task.maximum_steps, device)
    return simulator, simulator.generator


def stocks(device: str) -> Made:
    """Makes stock trading on the built-in prices."""
    options = StockOptions(train_end="2005-01-15", maximum_shares=1000)
    simulator = StockSimulator(load_market(options, device), options, LANES)
    return simulator, simulator.generator


SIMULATORS: dict[str, Callable[[str], Made]] = {"cartpole": cartpole, "stocks": stocks}


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades each simulator on the first and the last device."""
    for device in bench.ends:
        for name in SIMULATORS:
            try:
                yield from judge(measure(name, device))
            except Unimplemented as error:
                yield Finding(PART, f"{name}, {device}", Grade.ABSENT, error.message, mend="install the package")
            except PodraceError as error:
                mend = "report this line; set captured = false in environment.options"
                yield Finding(PART, f"{name}, {device}", Grade.FAIL, error.message, mend=mend)


def judge(found: Captured) -> Iterator[Finding]:
    """Grades a captured simulator. Pure."""
    where, mend = f"{found.simulator}, {found.device}", "report this line; set captured = false"
    equal = "equal, bit by bit" if found.equal else "differs from eager steps"
    yield Finding(PART, where, Grade.PASS if found.equal else Grade.FAIL, equal, mend="" if found.equal else mend)
    if found.nodes == UNKNOWN_NODES:
        yield Finding(PART, f"{where}, nodes", Grade.ABSENT, "not counted", mend="needs libcuda.so.1")
    else:
        grade = Grade.PASS if found.nodes > 0 else Grade.FAIL
        yield Finding(PART, f"{where}, nodes", grade, str(found.nodes), "more than 0", mend="" if found.nodes else mend)
    waits = found.synchronizes or "none"
    grade = Grade.FAIL if found.synchronizes else Grade.PASS
    yield Finding(PART, f"{where}, waits", grade, waits, "none", mend=mend if found.synchronizes else "")
    times = found.eager_seconds / found.captured_seconds
    fast = times >= SPEEDUP
    measured = f"{found.captured_seconds * 1e6:.0f} us a step, {times:.1f} times as fast as eager"
    grade = Grade.PASS if fast else Grade.SLOW
    mend = "" if fast else "another process uses the GPU, or its clock is low"
    yield Finding(PART, f"{where}, speed", grade, measured, f"{SPEEDUP:g} times as fast", mend=mend)


def measure(name: str, device: str) -> Captured:
    """Steps an eager and a captured simulator with the same actions.

    Raises:
        FailedPrecondition: The steps cannot be captured.
        Unimplemented: A package is missing.
    """
    eager, _ = SIMULATORS[name](device)
    inner, generator = SIMULATORS[name](device)
    tape = CountingGraph() if torch.device(device).type == "cuda" else None
    captured = CudaGraphSimulator(inner, [generator], tape.record if tape else replayed_by_calling)
    actions = [action.to(device) for action in random_actions(eager, STEPS)]
    equal = torch.equal(eager.reset(SEED), captured.reset(SEED)) and all(
        same_step(eager.step(action), captured.step(action)) for action in actions
    )
    step, own = actions[0], actions[-1]
    return Captured(
        name,
        device,
        equal,
        tape.nodes() if tape else STEPS,
        waits_of(lambda: captured.step(step), device),
        seconds_per_call(lambda: eager.step(own), device, 50),
        seconds_per_call(lambda: captured.step(own), device, 50),
    )


class CountingGraph:
    """Records a graph whose nodes can be counted."""

    def __init__(self) -> None:
        # Otherwise torch frees the graph once it can be replayed.
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)

    def record(
        self, function: Callable[[], Step], generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Callable[[], None], Step]:
        """Records as simulators.cuda_graph.record_graph does."""
        return record_graph(function, generators, device, self._graph)

    def nodes(self) -> int:
        """Returns the number of nodes by the driver; UNKNOWN_NODES if it cannot be asked."""
        count = ctypes.c_size_t()
        try:
            get_nodes = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes
        except (OSError, AttributeError):
            return UNKNOWN_NODES
        code = get_nodes(ctypes.c_void_p(self._graph.raw_cuda_graph()), None, ctypes.byref(count))
        return UNKNOWN_NODES if code else count.value


def replayed_by_calling(
    function: Callable[[], Step], generators: Sequence[torch.Generator], device: torch.device
) -> tuple[Callable[[], None], Step]:
    """Replaces a graph on the processor: calls the function again."""
    step = function()

    def replay() -> None:
        function()

    return replay, step


def waits_of(function: Callable[[], object], device: str) -> str:
    """Returns what made a call wait for the GPU, or an empty text. Graph replays are not examined by torch."""
    if torch.device(device).type != "cuda":
        function()
        return ""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        function()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return ""


def random_actions(simulator: Simulator, steps: int) -> list[Tensor]:
    """Returns actions [N] or [N, A] for some steps, on the processor."""
    generator, space = torch.Generator().manual_seed(SEED), simulator.action_space
    if space.kind == "discrete":
        return [torch.randint(space.n, (simulator.count,), generator=generator) for _ in range(steps)]
    return [2 * torch.rand((simulator.count, *space.shape), generator=generator) - 1 for _ in range(steps)]


def same_step(one: Step, other: Step) -> bool:
    """Whether two steps are equal bit by bit, final observations where an episode ended."""
    ended = one.terminated | one.truncated
    names = ("observation", "reward", "terminated", "truncated")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names) and torch.equal(
        one.final_observation[ended], other.final_observation[ended]
    )
