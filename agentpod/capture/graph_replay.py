"""Replays a function of tensors from CUDA graphs, one for each variant of the function and each size of its arguments.

A gradient step of a small network launches about a hundred kernels of a few microseconds each, and launching them takes
longer than running them. A graph launches all of them at once. Invariants of a function that can be replayed:

1. Everything that differs between two calls is in its arguments, in tensors that are changed in place, or in the
   variant. A Python number is a constant of the graph.
2. It never waits for the device, and draws no random numbers: noise is an argument. Collectives run between graphs
   (simulators.cuda_graph.between_graphs).
3. All tensors that it changes, besides those it returns, are in `changed`: recording runs the function, and these
   tensors are restored afterwards.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import structlog
import torch
from torch import Tensor

from podrace.errors import FailedPrecondition
from simulators.cuda_graph import record_graph

Result = TypeVar("Result")
Record = Callable[[Callable[[], Any], Sequence[torch.Generator], torch.device], tuple[Callable[[], None], Any]]
"""Records what a function does on a device; returns a function that replays it, and the recorded result."""
MAXIMUM_GRAPHS = 8
"""Graphs of one function; each keeps its memory. Calls of further variants or sizes run eagerly."""
_log = structlog.get_logger(__name__)


class _Recording(NamedTuple):
    inputs: tuple[tuple[Tensor, ...], ...]
    """The memory that the recorded call reads, grouped by type: one copy of many tensors needs equal types."""
    order: tuple[tuple[int, ...], ...]
    """Of each group, the places of its tensors among the arguments."""
    play: Callable[[], None]
    result: Any


class GraphReplay(Generic[Result]):
    """A function that is recorded when it is called for the second time, and replayed from then on.

        replay = GraphReplay(gradient_step, optimizer_tensors, "a gradient step")
        for minibatch in minibatches:
            metrics.append(replay(minibatch).clone())

    The first call of each variant and size runs eagerly, so a size that occurs once is never recorded. If a call cannot
    be recorded, this and all later calls run eagerly, and a warning states why.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        changed: Callable[[], Sequence[Tensor]],
        name: str,
        record: Record | None = None,
    ) -> None:
        """Records nothing yet.

        Args:
            function: Computes a result from tensors; see the invariants above.
            changed: Returns all tensors that the function changes, besides its result.
            name: Of the function, for the log.
            record: How a call is recorded; None: as a CUDA graph.
        """
        self._function, self._changed, self._name = function, changed, name
        self._record = record or partial(record_graph, name=name)
        self._seen: set[Hashable] = set()
        self._recordings: dict[Hashable, _Recording] = {}
        self._refused = False

    @property
    def graphs(self) -> int:
        """Number of graphs recorded so far."""
        return len(self._recordings)

    def __call__(self, inputs: Sequence[Tensor], variant: Hashable = ()) -> Result:
        """Calls the function, or replays it.

        Args:
            inputs: Arguments; their sizes must follow from the variant and the shape of the first one.
            variant: Everything else that the function depends on and that is not a tensor.

        Returns:
            The result. The next replay overwrites it.
        """
        key = (variant, inputs[0].shape)
        recording = self._recordings.get(key) or self._recording_of(key, inputs)
        if recording is None:
            return self._function(*inputs)
        _copy(recording, inputs)
        recording.play()
        result: Result = recording.result
        return result

    def _recording_of(self, key: Hashable, inputs: Sequence[Tensor]) -> _Recording | None:
        """Records a call unless it is the first one of its kind; returns None where it must run eagerly."""
        if self._refused or key not in self._seen or len(self._recordings) == MAXIMUM_GRAPHS:
            self._seen.add(key)
            return None
        own = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs)
        before = [tensor.clone() for tensor in self._changed()]
        try:
            play, result = self._record(lambda: self._function(*own), [], own[0].device)
        except FailedPrecondition as error:
            self._refused = True
            _log.warning("runs without a CUDA graph", what=self._name, reason=error.message)
            return None
        finally:
            for tensor, value in zip(self._changed(), before, strict=True):
                tensor.copy_(value)
        recording = self._recordings[key] = _Recording(*_grouped(own), play, result)
        return recording


def _grouped(tensors: Sequence[Tensor]) -> tuple[tuple[tuple[Tensor, ...], ...], tuple[tuple[int, ...], ...]]:
    """Groups tensors by type; returns the groups, and the places of their tensors. Empty tensors are left out."""
    places: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.numel():
            places.setdefault(tensor.dtype, []).append(place)
    order = tuple(map(tuple, places.values()))
    return tuple(tuple(tensors[place] for place in group) for group in order), order


def _copy(recording: _Recording, inputs: Sequence[Tensor]) -> None:
    """Copies arguments to the memory that the recorded call reads, by one operation for each type."""
    for group, places in zip(recording.inputs, recording.order, strict=True):
        torch._foreach_copy_(group, [inputs[place] for place in places])
