"""Copies between a GPU and memory of the host on another stream than the one that computes."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class CopyStream:
    """A stream of one GPU for copies; on a processor, everything happens at once.

        copies = CopyStream(device)
        with copies.following():
            target.copy_(source, non_blocking=True)
        wait = copies.mark()
        wait()                       # in a thread; then the target may be read by the host
        copies.before_computing()    # before the GPU overwrites the source

    Attributes:
        on_gpu: Whether there is a stream.
    """

    def __init__(self, device: torch.device) -> None:
        """Creates the stream with its first use."""
        self._device, self.on_gpu = device, device.type == "cuda"
        self._stream: Any = None

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Runs the block on the stream, after everything that the current stream has been given so far."""
        if not self.on_gpu:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Callable[[], None]:
        """Returns a function that waits, in any thread, for the copies so far."""
        if self._stream is None:
            return _nothing
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return waiting_for(event, self._device)

    def before_computing(self) -> None:
        """Lets what the current stream is given from now on start after the copies so far; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def host_buffer(self, like: Tensor) -> Tensor:
        """Allocates memory of the host for a copy of a tensor; pinned if there is a stream."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self.on_gpu)


def _nothing() -> None:
    """There is nothing to wait for."""


def waiting_for(event: Any, device: torch.device | int) -> Callable[[], None]:
    """Returns a function that waits for an event of a GPU in any thread.

    A new thread starts with the first GPU as its current one. There, the wait would create another context, of some
    500 MiB, on the first GPU.
    """

    def wait() -> None:
        with torch.cuda.device(device):
            event.synchronize()

    return wait
