"""Implements the CUDA driver of the plane `cuda` with CuPy.

CuPy's memory pool is not used: memory of its pool, and of torch's, cannot be exported in pieces.
"""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from podrace.errors import FailedPrecondition, ResourceExhausted, Unimplemented
from podrace.tensor_transport.cuda import HANDLE_BYTES, Slab


class CupyDriver:
    """Implements podrace.tensor_transport.cuda.Driver for one GPU, on torch's current stream."""

    def __init__(self, device: int = 0) -> None:
        """Selects a GPU.

        Args:
            device: Index among the GPUs that this process sees.

        Raises:
            Unimplemented: CuPy is not installed, or there is no such GPU.
        """
        try:
            import cupy
        except ModuleNotFoundError as error:
            raise Unimplemented(
                "plane 'cuda': package 'cupy' is not installed: pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12"
            ) from error
        if not cupy.cuda.is_available() or device >= cupy.cuda.runtime.getDeviceCount():
            raise Unimplemented(f"plane 'cuda': this process sees no GPU {device}")
        self._cupy, self._runtime, self._index = cupy, cupy.cuda.runtime, device

    def allocate(self, size: int) -> Slab:
        """Allocates memory with cudaMalloc."""
        with self._cupy.cuda.Device(self._index):
            try:
                memory = self._cupy.cuda.Memory(size)
            except (self._cupy.cuda.memory.OutOfMemoryError, self._runtime.CUDARuntimeError) as error:
                free, total = self._runtime.memGetInfo()
                raise ResourceExhausted(
                    f"GPU {self._index} has {free} of {total} bytes free, a region needs {size}: make the slots smaller"
                ) from error
            event = self._cupy.cuda.Event(disable_timing=True, interprocess=True)
            handles = self._runtime.ipcGetMemHandle(memory.ptr), self._runtime.ipcGetEventHandle(event.ptr)
            return Slab(self._tensor(memory.ptr, size, memory), event, b"".join(handles) + size.to_bytes(8, "little"))

    def open(self, handles: bytes) -> Slab:
        """Maps memory of another process; it is unmapped with the last tensor that views it."""
        memory_handle, event_handle = handles[:HANDLE_BYTES], handles[HANDLE_BYTES : 2 * HANDLE_BYTES]
        size = int.from_bytes(handles[2 * HANDLE_BYTES :], "little")
        with self._cupy.cuda.Device(self._index):
            try:
                memory = _OpenedMemory(self._runtime, self._runtime.ipcOpenMemHandle(memory_handle))
                event = _OpenedEvent(self._runtime, self._runtime.ipcOpenEventHandle(event_handle))
            except self._runtime.CUDARuntimeError as error:
                raise FailedPrecondition(
                    f"memory of another process cannot be mapped on GPU {self._index}: {error}; both must be on one"
                    " host, in containers that share a PID namespace, and neither may have exported it again"
                ) from error
            return Slab(self._tensor(memory.pointer, size, memory), event, handles)

    def zero(self, memory: Tensor) -> None:
        """Fills memory with zeros, on the stream."""
        memory.zero_()

    def record(self, event: Any) -> None:
        """Records the event on torch's current stream."""
        self._runtime.eventRecord(event.ptr, self._stream())

    def wait(self, event: Any) -> None:
        """Lets torch's current stream wait for the event."""
        self._runtime.streamWaitEvent(self._stream(), event.ptr)

    def finish(self) -> None:
        """Waits for torch's current stream."""
        torch.cuda.current_stream(self._index).synchronize()

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._index).cuda_stream)

    def _tensor(self, pointer: int, size: int, owner: object) -> Tensor:
        cuda = self._cupy.cuda
        memory = cuda.MemoryPointer(cuda.UnownedMemory(pointer, size, owner, self._index), 0)
        array = self._cupy.ndarray((size,), dtype=self._cupy.uint8, memptr=memory)
        tensor: Tensor = from_dlpack(array)
        return tensor


class _OpenedMemory:
    """Mapped memory that is unmapped when nothing refers to it."""

    def __init__(self, runtime: Any, pointer: int) -> None:
        self.pointer = pointer
        weakref.finalize(self, runtime.ipcCloseMemHandle, pointer)


class _OpenedEvent:
    """An event of another process, with `ptr` like CuPy's own events."""

    def __init__(self, runtime: Any, pointer: int) -> None:
        self.ptr = pointer
        weakref.finalize(self, runtime.eventDestroy, pointer)
