"""Steps recorded once and played back: a CUDA graph around a simulator that is written in torch.

On a GPU a step of a small simulator is a hundred kernels of a few microseconds each, and launching them takes longer
than they do. A graph launches them as one. What can be captured is a step that is the same kernels on the same memory
every time, asks the device nothing, and draws random numbers from generators that the graph knows: that of
simulators.classic.ClassicOnDevice and of simulators.stocks on an accelerator.

    simulator = Captured(StockSimulator(market, options, 65536), [simulator.generator])
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from podrace.errors import FailedPrecondition
from simulators.base import Report, Simulator, Space, Step

WARM_UP_STEPS = 3
"""Before a capture: libraries allocate and choose kernels when they are first used, which a graph must not hold."""

Record = Callable[[Callable[[], Step], Sequence[torch.Generator]], tuple[Callable[[], None], Step]]
"""Records what a function does on the device: gives how it is played back, and what it returned."""


class Captured:
    """A simulator whose steps are played back; the same Simulator to whoever uses it.

    An action is copied to where the recorded step reads it. What a step hands out are the recorded step's own tensors,
    which each playback writes anew.

    Attributes:
        observation_space: See simulators.base.Space.
        action_space: See simulators.base.Space.
        count: Number of lanes, N.
    """

    def __init__(
        self, simulator: Simulator, generators: Sequence[torch.Generator], record: Record | None = None
    ) -> None:
        """Records a step, and begins episodes with seed 0 as a new simulator does.

        Args:
            simulator: On a CUDA device. Its `reset` writes into the tensors that its steps use, and it is not used
                by anybody else from now on.
            generators: All that its steps draw from.
            record: How; by a CUDA graph unless said otherwise.

        Raises:
            FailedPrecondition: The step cannot be captured: it asks the device something, or allocates in a way that a
                graph cannot repeat.
        """
        self.observation_space: Space = simulator.observation_space
        self.action_space: Space = simulator.action_space
        self.count: int = simulator.count
        self._simulator = simulator
        observation = simulator.reset(0)
        discrete = self.action_space.kind == "discrete"
        dtype = torch.int64 if discrete else self.action_space.dtype
        shape = (self.count, *self.action_space.shape)
        self._action = torch.zeros(shape, dtype=dtype, device=observation.device)
        self._play, self._step = (record or record_graph)(lambda: simulator.step(self._action), generators)
        self.reset(0)

    def reset(self, seed: int) -> Tensor:
        """See simulators.base.Simulator."""
        return self._simulator.reset(seed)

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        self._action.copy_(action.reshape(self._action.shape))
        self._play()
        return self._step

    def report(self) -> Report:
        """See simulators.base.Simulator."""
        return self._simulator.report()

    def close(self) -> None:
        """See simulators.base.Simulator."""
        self._simulator.close()


def record_graph(
    function: Callable[[], Step], generators: Sequence[torch.Generator]
) -> tuple[Callable[[], None], Step]:
    """Captures a function as a CUDA graph; it is run a few times before.

    Raises:
        FailedPrecondition: It cannot be captured.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    try:
        with torch.cuda.graph(graph):
            step = function()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise FailedPrecondition(f"a step of this simulator cannot be captured as a CUDA graph: {reason}") from error
    return graph.replay, step
