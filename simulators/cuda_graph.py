"""Records a simulator's step as a CUDA graph and replays it.

On a GPU a step of a small simulator launches about a hundred kernels of a few microseconds each, and launching them
takes longer than running them. A graph launches all of them at once. A step can be captured if it runs the same kernels
on the same memory every time, never synchronizes with the device, and draws random numbers only from generators
registered with the graph. This holds for simulators.classic.ClassicOnDevice and, on an accelerator, for
simulators.stocks.

    simulator = CudaGraphSimulator(StockSimulator(market, options, 65536), [simulator.generator])
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from podrace.errors import FailedPrecondition
from simulators.base import Report, Simulator, Space, Step

WARM_UP_STEPS = 3
"""Steps before a capture: libraries allocate memory and choose kernels on first use, which a graph must not contain."""

EMPTY = "CUDA Graph is empty"
"""Part of torch's warning about a capture in which nothing was launched."""

Result = TypeVar("Result")
Action = Callable[[], None]
Record = Callable[[Callable[[], Step], Sequence[torch.Generator], torch.device], tuple[Callable[[], None], Step]]
"""Records what a function does on a device; returns a function that replays it, and the recorded result."""


@runtime_checkable
class Capturable(Protocol):
    """A simulator whose step a CUDA graph can contain; its `reset` writes into the tensors that its steps use.

    Attributes:
        capturable: The simulator that makes the steps; the object itself unless it replays a graph.
        graph_generators: All generators that steps draw from.
    """

    @property
    def capturable(self) -> Simulator:
        """The simulator that makes the steps."""
        ...

    @property
    def graph_generators(self) -> Sequence[torch.Generator]:
        """The generators."""
        ...


@runtime_checkable
class Polled(Protocol):
    """A capturable simulator with errors that a graph cannot report."""

    def poll(self) -> None:
        """Looks for an error without waiting for the device; called after every replay."""
        ...


_thread = threading.local()
"""`interrupt`: what the recording of this thread does with an action between graphs; absent while nothing records."""


def between_graphs(action: Action) -> None:
    """Runs an action that a graph must not contain, such as a collective, in the middle of a function that is recorded.

    It runs at once, or, if the function is being recorded, at every replay: the graph ends here and another one begins
    after it. While the function is recorded the action does not run, because its partners may not be recording.
    """
    interrupt: Callable[[Action], None] | None = getattr(_thread, "interrupt", None)
    if interrupt is None:
        action()
    else:
        interrupt(action)


@contextlib.contextmanager
def interrupted_by(interrupt: Callable[[Action], None]) -> Iterator[None]:
    """Makes `between_graphs` of this thread call a function of the recording instead of the action."""
    _thread.interrupt = interrupt
    try:
        yield
    finally:
        del _thread.interrupt


def leave_out(action: Action) -> None:
    """Skips an action, in runs of a function that only warm up."""


class CudaGraphSimulator:
    """A simulator whose steps are replayed from a CUDA graph; it satisfies the same Simulator interface.

    Actions are copied to the memory that the recorded step reads. Every step returns the tensors of the recorded step,
    which each replay overwrites.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
    """

    def __init__(
        self, simulator: Simulator, generators: Sequence[torch.Generator], record: Record | None = None
    ) -> None:
        """Records a step, and starts episodes with seed 0 as every new simulator does.

        Args:
            simulator: On a CUDA device. Its `reset` must write into the tensors that its steps use. It must not be used
                by others from now on.
            generators: All generators that its steps draw from.
            record: How a step is recorded; None: as a CUDA graph.

        Raises:
            FailedPrecondition: The step cannot be captured: it synchronizes with the device, or allocates memory in a
                way that a graph cannot repeat.
        """
        self.observation_space: Space = simulator.observation_space
        self.action_space: Space = simulator.action_space
        self.count: int = simulator.count
        self._simulator, self._generators = simulator, generators
        observation = simulator.reset(0)
        discrete = self.action_space.kind == "discrete"
        dtype = torch.int64 if discrete else self.action_space.dtype
        shape = (self.count, *self.action_space.shape)
        self._action = torch.zeros(shape, dtype=dtype, device=observation.device)
        self._play, self._step = (record or record_graph)(
            lambda: simulator.step(self._action), generators, observation.device
        )
        self.reset(0)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        return self._simulator.reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        self._action.copy_(action.reshape(self._action.shape))
        self._play()
        return self._step

    @property
    def capturable(self) -> Simulator:
        """See Capturable: a graph cannot contain another one."""
        return self._simulator

    @property
    def graph_generators(self) -> Sequence[torch.Generator]:
        """See Capturable."""
        return self._generators

    def report(self) -> Report:
        """See simulators.base.Simulator."""
        return self._simulator.report()

    def close(self) -> None:
        """See simulators.base.Simulator."""
        self._simulator.close()


def record_graph(
    function: Callable[[], Result],
    generators: Sequence[torch.Generator],
    device: torch.device,
    graph: torch.cuda.CUDAGraph | None = None,
    name: str = "a step of this simulator",
) -> tuple[Callable[[], None], Result]:
    """Captures a function as CUDA graphs on a device, after a few runs to warm up.

    Everything runs with the device as the current one: torch captures on a stream of the current device, so a function
    that computes on another one would give an empty graph. Other threads may call CUDA during the capture. There is one
    graph, and another one after every action between graphs (see `between_graphs`).

    Args:
        function: What to capture.
        generators: All generators that it draws from.
        device: Device that it computes on.
        graph: Graph to capture into; None: a new one.
        name: Of what is captured, for error messages.

    Returns:
        A function that replays the graphs, and what the captured run returned.

    Raises:
        FailedPrecondition: The function cannot be captured, or launched nothing on the device.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        capture = _Capture(generators, graph or torch.cuda.CUDAGraph(), side)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), interrupted_by(leave_out):
            for _ in range(WARM_UP_STEPS):
                function()
        torch.cuda.current_stream(device).wait_stream(side)
        try:
            result = capture.run(function)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise FailedPrecondition(f"{name} cannot be captured as a CUDA graph: {reason}") from error
    if not capture.graphs:
        raise FailedPrecondition(
            f"{name} cannot be captured as a CUDA graph: it launched nothing on {device}; its tensors must be on that"
            " device"
        )

    def replay() -> None:
        with torch.cuda.device(device):
            for part in capture.parts:
                part()

    return replay, result


class _Capture:
    """Captures a function as one graph, or as several with actions between them.

    All use one pool of memory and one stream, which must be of the device: without a stream, torch captures on one that
    it keeps for the whole process, of the device that was captured on first.

    Attributes:
        parts: What a replay calls: replays of graphs, and actions.
        graphs: The graphs that are not empty.
    """

    def __init__(
        self, generators: Sequence[torch.Generator], first: torch.cuda.CUDAGraph, stream: torch.cuda.Stream
    ) -> None:
        self.parts, self.graphs = list[Action](), list[torch.cuda.CUDAGraph]()
        self._generators, self._next, self._stream = generators, first, stream
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, function: Callable[[], Result]) -> Result:
        """Captures a run of the function; raises RuntimeError if that is impossible."""
        self._scope = self._begin()
        try:
            with interrupted_by(self._interrupt):
                result = function()
            self._end()
        except BaseException:
            # The first error is the reason; ending a capture that failed is another one.
            with contextlib.suppress(RuntimeError):
                self._scope.close()
            self._release_pool()
            raise
        return result

    def _release_pool(self) -> None:
        """Ends what torch leaves under way after a failed capture: it would no longer free memory that it caches."""
        # Not part of torch's interface.
        end, release = (getattr(torch._C, f"_cuda_{name}", None) for name in ("endAllocateToPool", "releasePool"))
        # An error means that the capture did not begin, or that torch ended it.
        with contextlib.suppress(RuntimeError):
            if end and release:
                end(self._stream.device_index, self._pool)
                release(self._stream.device_index, self._pool)

    def _begin(self) -> contextlib.ExitStack:
        graph = self._next
        for generator in self._generators:
            graph.register_generator_state(generator)
        scope = contextlib.ExitStack()
        # Restores the current stream even if the capture fails, when `graph` does not.
        scope.enter_context(torch.cuda.stream(self._stream))
        scope.enter_context(torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"))
        return scope

    def _end(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._scope.close()
        if not any(EMPTY in str(warning.message) for warning in caught):
            self.graphs.append(self._next)
            self.parts.append(self._next.replay)

    def _interrupt(self, action: Action) -> None:
        self._end()
        self.parts.append(action)
        self._next = torch.cuda.CUDAGraph()
        self._scope = self._begin()
