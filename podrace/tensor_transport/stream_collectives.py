"""Puts collectives of NCCL on the stream of a GPU, and watches from a thread that they make progress.

The host does not wait between the collectives of an update. The watching thread notices a lost member and has the group
aborted. The collectives on the stream then end, and so does a wait for the stream.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions, ReduceOp

WATCH_SECONDS = 0.1
"""Interval at which the thread looks at the collectives that have not finished."""


class StreamCollectives:
    """Collectives on the current stream of a GPU.

        collectives = StreamCollectives(device, timeout_seconds=20.0, lose=group.abort)
        collectives.average(backend, gradient)      # returns at once
        ...
        collectives.finish()                        # once an update
        collectives.close()

    A collective that waits longer than the timeout after the one before it counts as lost; then `lose` is called, once,
    in the watching thread.
    """

    def __init__(
        self,
        device: torch.device,
        timeout_seconds: float,
        lose: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts no thread yet.

        Args:
            device: The GPU.
            timeout_seconds: Longest time of one collective.
            lose: Called when a collective has taken longer.
            clock: Monotonic clock in seconds.
        """
        self._device, self._timeout_seconds, self._lose, self._clock = device, timeout_seconds, lose, clock
        self._unfinished: deque[tuple[float, Any]] = deque()
        self._finished_at = -float("inf")
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def average(self, backend: Any, tensor: Tensor) -> None:
        """Replaces a contiguous tensor by its mean over the members."""
        options = AllreduceOptions()
        options.reduceOp, options.asyncOp = ReduceOp(ReduceOp.AVG), False
        self._put(backend.allreduce([tensor], options))

    def gather(self, backend: Any, tensor: Tensor, gathered: Tensor) -> None:
        """Fills [size, ...] with the contiguous tensors [...] of all members."""
        options = AllgatherOptions()
        options.asyncOp = False
        self._put(backend._allgather_base(gathered, tensor, options))

    def broadcast(self, backend: Any, tensors: Sequence[tuple[int, Tensor]]) -> None:
        """Broadcasts contiguous tensors, each from the rank given with it, as one group of operations."""
        backend._start_coalescing()
        for source, tensor in tensors:
            options = BroadcastOptions()
            options.rootRank, options.asyncOp = source, False
            backend.broadcast([tensor], options)
        self._put(backend._end_coalescing())

    def finish(self) -> None:
        """Waits for the current stream, without polling. If the members lost each other, `lose` was called before."""
        torch.cuda.current_stream(self._device).synchronize()
        with self._changed:
            self._unfinished.clear()

    def close(self) -> None:
        """Ends the watching thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _put(self, work: Any) -> None:
        """Watches the collective that was put on the stream last."""
        if work is not None:
            # Lets the stream wait where NCCL used another one; the host continues.
            work.wait()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        with self._changed:
            self._unfinished.append((self._clock(), event))
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="group-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _watch(self) -> None:
        # A new thread starts with the first GPU, and a query from there would create a context on it.
        with torch.cuda.device(self._device):
            self._watch_until_closed()

    def _watch_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._unfinished)
                if self._closed:
                    return
                late = self.is_late()
            if late:
                self._lose()
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closed, min(WATCH_SECONDS, self._timeout_seconds / 4))

    def is_late(self) -> bool:
        """Whether the oldest collective that has not finished takes longer than the timeout."""
        now, unfinished = self._clock(), self._unfinished
        while unfinished and unfinished[0][1].query():
            unfinished.popleft()
            self._finished_at = now
        # The stream may have had other work before a collective, so time counts from the end of the one before it.
        return bool(unfinished) and now - max(unfinished[0][0], self._finished_at) > self._timeout_seconds
