"""Implements the CUDA driver of the plane `cuda` with CuPy.

CuPy's memory pool is not used: memory of its pool, and of torch's, cannot be exported in pieces.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from podrace.errors import FailedPrecondition, ResourceExhausted, Unimplemented
from podrace.tensor_transport.copy_stream import waiting_for
from podrace.tensor_transport.cuda import HANDLE_BYTES, SIZE_BYTES, UUID_BYTES, Slab

BLOCK_BYTES = 2 << 20
"""Allocations are multiples of this. CUDA cuts smaller ones out of one block, and a handle exports the whole block."""


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
            # An error of CUDA that is not about memory ends the process: its GPU, or its context, is lost.
            memory = self._allocate(size)
            with self._errors_of("memory cannot be exported to another process"):
                event = self._cupy.cuda.Event(disable_timing=True, interprocess=True)
                exported = self._runtime.ipcGetMemHandle(memory.ptr), self._runtime.ipcGetEventHandle(event.ptr)
            handles = b"".join((*exported, size.to_bytes(SIZE_BYTES, "little"), self._uuid(self._index)))
            return Slab(self._tensor(memory.ptr, size, memory), event, handles)

    def _allocate(self, size: int) -> Any:
        blocks = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        refusals = self._cupy.cuda.memory.OutOfMemoryError, self._runtime.CUDARuntimeError
        with suppress(*refusals):
            return self._cupy.cuda.Memory(blocks)
        # torch keeps memory that it no longer uses.
        torch.cuda.empty_cache()
        try:
            return self._cupy.cuda.Memory(blocks)
        except refusals as error:
            free, total = self._runtime.memGetInfo()
            raise ResourceExhausted(
                f"GPU {self._index} has {free} of {total} bytes free, a region needs {size}: make the slots smaller"
            ) from error

    def open(self, handles: bytes) -> Slab:
        """Maps memory of another process; it is unmapped with the last tensor that views it."""
        parts = (HANDLE_BYTES, HANDLE_BYTES, SIZE_BYTES, UUID_BYTES)
        starts = [sum(parts[:index]) for index in range(len(parts))]
        memory_handle, event_handle, size_bytes, owner = (
            handles[start : start + part] for start, part in zip(starts, parts, strict=True)
        )
        self._check_reach(owner)
        size = int.from_bytes(size_bytes, "little")
        with self._cupy.cuda.Device(self._index):
            try:
                memory = _OpenedMemory(self._cupy, self._index, self._runtime.ipcOpenMemHandle(memory_handle))
                event = _OpenedEvent(self._cupy, self._index, self._runtime.ipcOpenEventHandle(event_handle))
            except self._runtime.CUDARuntimeError as error:
                raise FailedPrecondition(
                    f"memory of {_name(owner)} cannot be mapped on GPU {self._index}: {error}; both processes must be"
                    " on one host, in containers that share the process namespace and /dev/shm, and neither may have"
                    " exported it again"
                ) from error
            return Slab(self._tensor(memory.pointer, size, memory), event, handles)

    def _check_reach(self, owner: bytes) -> None:
        """Checks that memory of the GPU with this UUID can be mapped.

        Raises:
            FailedPrecondition: This process does not see the GPU, or its own has no peer access to it.
        """
        uuids = [self._uuid(index) for index in range(self._runtime.getDeviceCount())]
        if owner not in uuids:
            raise FailedPrecondition(
                f"memory of {_name(owner)} cannot be mapped: this process sees only {', '.join(map(_name, uuids))};"
                " give both containers that GPU, or use the plane 'group'"
            )
        index = uuids.index(owner)
        if index != self._index and not self._runtime.deviceCanAccessPeer(self._index, index):
            raise FailedPrecondition(
                f"memory of {_name(owner)} cannot be mapped on {_name(uuids[self._index])}: these GPUs have no peer"
                " access to each other"
            )

    def _uuid(self, index: int) -> bytes:
        # Of torch: CuPy ends a UUID at its first zero byte.
        return UUID(str(torch.cuda.get_device_properties(index).uuid)).bytes

    def zero(self, memory: Tensor) -> None:
        """Fills memory with zeros, on the stream."""
        memory.zero_()

    def record(self, event: Any) -> None:
        """Records the event on torch's current stream."""
        with self._cupy.cuda.Device(self._index):
            self._runtime.eventRecord(event.ptr, self._stream())

    def wait(self, event: Any) -> None:
        """Lets torch's current stream wait for the event."""
        with self._cupy.cuda.Device(self._index), self._errors_of("an event cannot be waited for"):
            self._runtime.streamWaitEvent(self._stream(), event.ptr)

    def submitted(self) -> Callable[[], None]:
        """Records an event on torch's current stream; returns a function that waits for it without using a core."""
        with torch.cuda.device(self._index):
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._index))
        return waiting_for(event, self._index)

    @contextmanager
    def _errors_of(self, what: str) -> Iterator[None]:
        """Raises FailedPrecondition for an error of CUDA; `what` says what failed."""
        try:
            yield
        except self._runtime.CUDARuntimeError as error:
            raise FailedPrecondition(f"plane 'cuda': {what} on GPU {self._index}: {error}") from error

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._index).cuda_stream)

    def _tensor(self, pointer: int, size: int, owner: object) -> Tensor:
        cuda = self._cupy.cuda
        memory = cuda.MemoryPointer(cuda.UnownedMemory(pointer, size, owner, self._index), 0)
        array = self._cupy.ndarray((size,), dtype=self._cupy.uint8, memptr=memory)
        tensor: Tensor = from_dlpack(array)
        return tensor


class _OpenedMemory:
    """Mapped memory that is unmapped when nothing refers to it, after the GPU has finished its work on it."""

    def __init__(self, cupy: Any, index: int, pointer: int) -> None:
        self.pointer = pointer
        # At the exit of the process the driver unmaps it; CUDA may be gone by then.
        weakref.finalize(self, _unmap, cupy, index, pointer).atexit = False


class _OpenedEvent:
    """An event of another process, with `ptr` like CuPy's own events."""

    def __init__(self, cupy: Any, index: int, pointer: int) -> None:
        self.ptr = pointer
        weakref.finalize(self, _destroy, cupy, index, pointer).atexit = False


def _unmap(cupy: Any, index: int, pointer: int) -> None:
    # Whichever thread drops the last view, with whatever current device.
    with cupy.cuda.Device(index):
        # Kernels that were launched may still use the memory. Others than those of this stream were awaited. To wait
        # for all streams is forbidden while another thread records a CUDA graph, and would end its recording.
        try:
            with suppress(RuntimeError):
                torch.cuda.default_stream(index).synchronize()
        finally:
            cupy.cuda.runtime.ipcCloseMemHandle(pointer)


def _destroy(cupy: Any, index: int, pointer: int) -> None:
    with cupy.cuda.Device(index):
        cupy.cuda.runtime.eventDestroy(pointer)


def _name(uuid: bytes) -> str:
    """A GPU's UUID as NVIDIA's tools print it."""
    return f"GPU-{UUID(bytes=uuid)}"
