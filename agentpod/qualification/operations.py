"""Counts the operations of a function and the bytes they touch, and bounds its duration by both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "expand", "lift_fresh", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
})  # fmt: skip
"""Operations that launch nothing."""


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


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations within a block, views left out."""

    def __init__(self) -> None:
        """Starts at zero."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.touched_bytes = 0
        self.by_name: dict[str, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs an operation and counts it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket.__name__)
        if name not in VIEWS:
            self.operations += 1
            self.by_name[name] = self.by_name.get(name, 0) + 1
            tensors = (leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor))
            # A result that is also an argument is written as well as read, so it counts twice.
            self.touched_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def count_operations(function: Callable[[], object]) -> Counted:
    """Counts the operations of one call."""
    counter = OperationCounter()
    with torch.no_grad(), counter:
        function()
    return Counted(counter.operations, counter.touched_bytes)
