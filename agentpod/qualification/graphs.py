"""Compares simulators, rollouts and updates that replay CUDA graphs with eager ones, on the first and the last GPU.

A capture on another device than the current one gives an empty graph, which replays without an error and changes
nothing. So the results are compared, and the nodes of the graph are counted.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentpod.capture.graph_replay import Record
from agentpod.experience.captured_steps import CapturedSteps
from agentpod.experience.rollout import Lanes, collect, rollout_fields
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.qualification import trials
from agentpod.qualification.bench import Bench, seconds_per_call
from agentpod.qualification.operations import OperationCounter, record_operations
from podrace.errors import PodraceError, Unimplemented
from podrace.qualification.findings import Finding, Grade
from simulators import make
from simulators.base import Simulator, Step
from simulators.classic import ClassicOnDevice
from simulators.classic_tasks import TASKS
from simulators.cuda_graph import Capturable, CudaGraphSimulator, record_graph
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions

PART = "graphs"
LANES, STEPS, SEED = 256, 60, 7
SPEEDUP = 1.5
"""A captured step must be at least this many times as fast as an eager one."""
UNKNOWN_NODES = -1
HORIZON = 32
UPDATES = ("ppo", "a2c", "dqn", "td3", "sac")
"""Algorithms whose updates are compared."""
REMEDY = "report this line; set pod.captured = false (of stocks: captured = false in environment.options)"
Made = tuple[Simulator, torch.Generator]


@dataclass(frozen=True)
class Captured:
    """A captured simulator, rollout or update against an eager one."""

    subject: str
    device: str
    equal: bool
    """Whether all results were equal, bit by bit."""
    nodes: int
    """Nodes of the graph; UNKNOWN_NODES if they could not be counted."""
    synchronizes: str | None
    """What made a step wait for the device; empty if nothing did; None: not examined."""
    eager_seconds: float
    """Of a step of LANES lanes, a step of a rollout, or an update."""
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


def warp_ant(device: str) -> Made:
    """Makes the ant of MuJoCo Warp, which draws from no generator."""
    return make("warp:ant", LANES, {"deterministic": True}, device), torch.Generator()


SIMULATORS: dict[str, Callable[[str], Made]] = {"cartpole": cartpole, "stocks": stocks}
ROLLOUTS = {**SIMULATORS, "warp:ant": warp_ant}
NOT_ON_TAPE = ("stocks", "warp:ant")
"""Simulators that call NumPy or Warp on processors, which a tape of torch's operations does not record."""


def run(bench: Bench) -> Iterator[Finding]:
    """Measures and grades everything on the first and the last device."""
    for device in bench.ends:
        for name in SIMULATORS:
            yield from _graded(measure, name, device)
        for name in ROLLOUTS:
            if device == "cpu" and name in NOT_ON_TAPE:
                yield Finding(PART, f"rollout of {name}, cpu", Grade.ABSENT, remedy="needs a GPU")
            else:
                yield from _graded(measure_rollout, name, device)
        for name in UPDATES:
            yield from _graded(measure_update, name, device)


def _graded(measure: Callable[[str, str], Captured], name: str, device: str) -> Iterator[Finding]:
    try:
        yield from judge(measure(name, device))
    except Unimplemented as error:
        yield Finding(PART, f"{name}, {device}", Grade.ABSENT, error.message, remedy="install the package")
    except PodraceError as error:
        yield Finding(PART, f"{name}, {device}", Grade.FAIL, error.message, remedy=REMEDY)


def judge(found: Captured) -> Iterator[Finding]:
    """Grades what was captured. Pure."""
    where, remedy = f"{found.subject}, {found.device}", REMEDY
    equal = "equal, bit by bit" if found.equal else "differs from eager steps"
    yield Finding(PART, where, Grade.PASS if found.equal else Grade.FAIL, equal, remedy="" if found.equal else remedy)
    if found.nodes == UNKNOWN_NODES:
        yield Finding(PART, f"{where}, nodes", Grade.ABSENT, "not counted", remedy="needs libcuda.so.1")
    else:
        grade = Grade.PASS if found.nodes > 0 else Grade.FAIL
        yield Finding(
            PART, f"{where}, nodes", grade, str(found.nodes), "more than 0", remedy="" if found.nodes else remedy
        )
    if found.synchronizes is not None:
        waits = found.synchronizes or "none"
        grade = Grade.FAIL if found.synchronizes else Grade.PASS
        yield Finding(PART, f"{where}, waits", grade, waits, "none", remedy=remedy if found.synchronizes else "")
    times = found.eager_seconds / found.captured_seconds
    fast = times >= SPEEDUP
    measured = f"{found.captured_seconds * 1e6:.0f} us a step, {times:.1f} times as fast as eager"
    grade = Grade.PASS if fast else Grade.SLOW
    remedy = "" if fast else "another process uses the GPU, or its clock is low"
    yield Finding(PART, f"{where}, speed", grade, measured, f"{SPEEDUP:g} times as fast", remedy=remedy)


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


def measure_rollout(name: str, device: str) -> Captured:
    """Collects the same rollouts with eager and with captured steps of a policy and a simulator.

    Raises:
        FailedPrecondition: The steps cannot be captured.
        Unimplemented: A package is missing.
    """
    tape = CountingGraph() if torch.device(device).type == "cuda" else None
    record = tape.record if tape else record_operations
    with _comparable(device), torch.no_grad():
        eager, captured = _Collection(name, device, None), _Collection(name, device, record)
        equal = all(one == other for one, other in zip(eager.rollouts(3), captured.rollouts(3), strict=True))
        seconds = [seconds_per_call(each.collect, device, 3) / HORIZON for each in (eager, captured)]
    return Captured(f"rollout of {name}", device, equal, tape.nodes() if tape else STEPS, None, *seconds)


class _Collection:
    """A policy in a simulator."""

    def __init__(self, name: str, device: str, record: Record | None) -> None:
        made, _ = ROLLOUTS[name](device)
        spaces = made.observation_space, made.action_space
        self._policy, self._simulator = Policy(*spaces, NetworkSpec((64, 64)), device=device), made
        start = Policy(*spaces, NetworkSpec((64, 64)))
        start.initialize(torch.Generator().manual_seed(SEED))
        self._policy.load(start.flat)
        capturable = made if isinstance(made, Capturable) else None
        self._steps = CapturedSteps(capturable, self._policy, record) if record and capturable else None
        self._rollout = trials.zeros(rollout_fields(*spaces, HORIZON, LANES), device)
        self._lanes = Lanes.start(made.reset(SEED))
        self._generator = torch.Generator(device).manual_seed(SEED)

    def collect(self) -> None:
        """Collects the next rollout."""
        result = collect(self._simulator, self._policy, self._rollout, self._lanes, self._generator, steps=self._steps)
        self._lanes = result.lanes

    def rollouts(self, number: int) -> list[list[float]]:
        """Collects rollouts; returns rewards and log-probabilities of each."""
        found = []
        for _ in range(number):
            self.collect()
            found.append([value for name in ("reward", "log_prob") for value in self._rollout[name].flatten().tolist()])
        return found


def measure_update(name: str, device: str) -> Captured:
    """Updates an algorithm with eager and with captured gradient steps, from one state.

    Raises:
        FailedPrecondition: The steps cannot be captured.
    """
    tape = CountingGraph() if torch.device(device).type == "cuda" else None
    record = tape.record if tape else record_operations
    experience = trials.collected(name)
    with _comparable(device):
        eager, expected = trials.updated(experience, device)
        captured, found = trials.updated(experience, device, record=record)
        equal = all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
        updates = [trials.update_of(algorithm, experience, device) for algorithm in (eager, captured)]
        for update in updates:
            # Of a replay memory, the first segments only warm up.
            update(0)
            update(1)
        seconds = [seconds_per_call(lambda update=update: update(2), device, 3) for update in updates]  # type: ignore[misc]
    return Captured(f"update of {name}", device, equal, tape.nodes() if tape else STEPS, None, *seconds)


def _comparable(device: str) -> AbstractContextManager[object]:
    """Makes eager and recorded runs compute by the same functions on the processor: within the block, all by torch."""
    return OperationCounter() if torch.device(device).type == "cpu" else nullcontext()


class CountingGraph:
    """Records graphs; the nodes of the last one can be counted."""

    def __init__(self) -> None:
        """Starts without a graph."""
        self._graph: torch.cuda.CUDAGraph | None = None

    def record(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Callable[[], None], Any]:
        """Records as simulators.cuda_graph.record_graph does."""
        # Otherwise torch frees the graph once it can be replayed.
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        return record_graph(function, generators, device, self._graph)

    def nodes(self) -> int:
        """Returns the number of nodes by the driver; UNKNOWN_NODES if it cannot be asked; 0 without a graph."""
        if self._graph is None:
            return 0
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
