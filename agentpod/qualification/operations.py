"""Counts the operations of a function and the bytes they touch, and records and replays them as a CUDA graph would."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from podrace.errors import FailedPrecondition
from simulators.cuda_graph import WARM_UP_STEPS, interrupted_by, leave_out

VIEWS = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "expand", "lift_fresh", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
})  # fmt: skip
"""Operations that launch nothing."""


WAITS = frozenset({
    "_local_scalar_dense", "_unique2", "equal", "is_nonzero", "item", "lift_fresh", "masked_select", "nonzero",
    "unique_dim",
})  # fmt: skip
"""Operations whose result the host waits for, or which copy from it: a graph must not contain them."""


@dataclass(frozen=True)
class Counted:
    """What one call of a function does."""

    operations: int
    """Operations that launch a kernel or copy memory."""
    touched_bytes: int
    """Bytes of the tensors that they read and write."""

    def least_seconds(self, launch_seconds: float, gigabytes_per_second: float) -> float:
        """Returns the least duration: launches one after another, or all bytes through the memory.

        Args:
            launch_seconds: Duration of a launch.
            gigabytes_per_second: Bandwidth of the memory; 0: unknown, so only launches count.
        """
        launches = self.operations * launch_seconds
        memory = self.touched_bytes / (gigabytes_per_second * 1e9) if gigabytes_per_second else 0.0
        return max(launches, memory)


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operation within a block to `run`."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See TorchDispatchMode."""
        return self.run(func, str(func.overloadpacket.__name__), args, kwargs or {})

    def run(self, operation: Any, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Runs an operation and returns its result."""
        raise NotImplementedError


class OperationCounter(OperationMode):
    """Counts the operations within a block, views left out."""

    def __init__(self) -> None:
        """Starts at zero."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.touched_bytes = 0
        self.by_name: dict[str, int] = {}

    def run(self, operation: Any, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Runs an operation and counts it."""
        result = operation(*arguments, **options)
        if name not in VIEWS:
            self.operations += 1
            self.by_name[name] = self.by_name.get(name, 0) + 1
            tensors = (leaf for leaf in tree_leaves((arguments, options, result)) if isinstance(leaf, Tensor))
            # A result that is also an argument is written as well as read, so it counts twice.
            self.touched_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def count_operations(function: Callable[[], object]) -> Counted:
    """Counts the operations of one call."""
    counter = OperationCounter()
    with torch.no_grad(), counter:
        function()
    return Counted(counter.operations, counter.touched_bytes)


class OperationTape(OperationMode):
    """Records the operations within a block, and replays them on the same memory: a CUDA graph for any device.

    As in a CUDA graph, numbers are constants, tensors keep their addresses, and what runs is decided by the recorded
    run. Operations that do not go through torch (numpy) are not recorded.
    """

    def __init__(self) -> None:
        """Starts without operations."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], list[Any]]] = []

    def run(self, operation: Any, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Runs an operation and records it.

        Raises:
            FailedPrecondition: The host would wait for its result.
        """
        selects = name in ("index", "index_put_", "index_put") and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(arguments[1])
        )
        if name in WAITS or selects:
            raise FailedPrecondition(f"operation {name} waits for the device")
        result = operation(*arguments, **options)
        if name not in VIEWS:
            self._calls.append((operation, arguments, options, tree_leaves(result)))
        return result

    def interrupt(self, action: Callable[[], None]) -> None:
        """Records an action between graphs; see simulators.cuda_graph.between_graphs."""
        self._calls.append((action, (), {}, [None]))

    def replay(self) -> None:
        """Runs all operations again; results are written over those of the recorded run."""
        for func, args, options, results in self._calls:
            for kept, found in zip(results, tree_leaves(func(*args, **options)), strict=True):
                if isinstance(kept, Tensor) and kept is not found:
                    kept.copy_(found)


def record_operations(
    function: Callable[[], Any], generators: Sequence[torch.Generator], device: torch.device
) -> tuple[Callable[[], None], Any]:
    """Records a function as `simulators.cuda_graph.record_graph` does, on a tape; for processors.

    Raises:
        FailedPrecondition: The function waits for the device.
    """
    with interrupted_by(leave_out):
        for _ in range(WARM_UP_STEPS):
            function()
    with OperationTape() as tape, interrupted_by(tape.interrupt):
        result = function()
    return tape.replay, result
