"""The calls of CUDA that the plane `cuda` makes through CuPy, on which device and in which order; CuPy is faked."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import torch

from podrace.errors import FailedPrecondition, ResourceExhausted
from podrace.tensor_transport import cupy_driver
from podrace.tensor_transport.codec import size_bytes
from podrace.tensor_transport.cuda import HANDLE_BYTES, HANDLES
from podrace.tensor_transport.cupy_driver import BLOCK_BYTES, CupyDriver

SIZE = 5000


class CudaError(RuntimeError):
    pass


class FakeCupy:
    """What CupyDriver calls of CuPy, for a process that sees some GPUs; lists the calls with the current device."""

    def __init__(self, *uuids: str, peer_access: bool = True) -> None:
        self.calls: list[str] = []
        self._current, self.names, self.kept_by_torch, self.recording = 0, uuids, False, False
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError,
            getDeviceCount=lambda: len(uuids),
            # As in CuPy, which takes the bytes for a text that ends at the first zero.
            getDeviceProperties=lambda index: {"uuid": uuid_of(uuids[index]).bytes.partition(b"\0")[0]},
            deviceCanAccessPeer=lambda own, other: peer_access,
            ipcGetMemHandle=lambda pointer: self._note("export", b"m" * HANDLE_BYTES),
            ipcGetEventHandle=lambda pointer: b"e" * HANDLE_BYTES,
            ipcOpenMemHandle=lambda handle: self._note("map", 77),
            ipcOpenEventHandle=lambda handle: 78,
            ipcCloseMemHandle=lambda pointer: self._note(f"unmap {pointer}"),
            eventDestroy=lambda pointer: self._note(f"destroy {pointer}"),
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            is_available=lambda: True,
            Device=self._device,
            Memory=self._memory,
            Event=lambda **_: SimpleNamespace(ptr=67),
            UnownedMemory=lambda pointer, size, owner, index: owner,
            MemoryPointer=lambda memory, offset: memory,
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        )
        self.uint8 = "uint8"

    def _memory(self, size: int) -> Any:
        self._note(f"allocate {size}")
        if self.kept_by_torch:
            raise MemoryError
        return SimpleNamespace(ptr=66)

    def ndarray(self, shape: tuple[int], dtype: str, memptr: object) -> Any:
        return SimpleNamespace(shape=shape, owner=memptr)

    def default_stream(self, index: int) -> Any:
        """What torch.cuda has under this name."""
        return SimpleNamespace(synchronize=partial(self._wait, index))

    def _wait(self, index: int) -> None:
        self._note(f"wait for {index}")
        if self.recording:
            raise CudaError("operation not permitted when stream is capturing")

    def _note(self, call: str, answer: Any = None) -> Any:
        self.calls.append(f"{call} on {self._current}")
        return answer

    @contextlib.contextmanager
    def _device(self, index: int) -> Iterator[None]:
        before, self._current = self._current, index
        yield
        self._current = before


class Owned(torch.Tensor):
    owner: object


def as_tensor(array: Any) -> torch.Tensor:
    tensor = torch.zeros(array.shape, dtype=torch.uint8).as_subclass(Owned)
    tensor.owner = array.owner
    return tensor


@pytest.fixture(autouse=True)
def _tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_driver, "from_dlpack", as_tensor)


def refused(*_: object, **__: object) -> Any:
    raise CudaError("invalid argument")


def uuid_of(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16))


def driver(monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy, device: int = 0) -> CupyDriver:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    properties = [SimpleNamespace(uuid=str(uuid_of(name))) for name in cupy.names]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    monkeypatch.setattr(torch.cuda, "default_stream", cupy.default_stream)
    return CupyDriver(device)


def test_memory_is_allocated_in_whole_blocks_and_its_handle_names_the_gpu_of_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cupy = FakeCupy("a", "b")
    slab = driver(monkeypatch, cupy, 1).allocate(SIZE)
    assert cupy.calls == [f"allocate {BLOCK_BYTES} on 1", "export on 1"]
    assert slab.memory.numel() == SIZE
    assert slab.handles[-16:] == b"b".ljust(16)
    assert slab.handles[2 * HANDLE_BYTES : -16] == SIZE.to_bytes(8, "little")


@pytest.mark.parametrize("recording", [False, True])
def test_memory_is_unmapped_on_its_gpu_after_the_gpu_has_finished(
    recording: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the wait fails, because a graph is recorded. A wait for the whole device would end the recording."""
    handles = driver(monkeypatch, FakeCupy("a", "b")).allocate(SIZE).handles
    cupy = FakeCupy("a", "b")
    cupy.recording = recording
    slab = driver(monkeypatch, cupy, 1).open(handles)
    assert cupy.calls == ["map on 1"]
    del slab
    gc.collect()
    assert sorted(cupy.calls[1:]) == ["destroy 78 on 1", "unmap 77 on 1", "wait for 1 on 1"]
    assert cupy.calls.index("wait for 1 on 1") < cupy.calls.index("unmap 77 on 1")


@pytest.mark.parametrize(
    ("cupy", "device", "message"),
    [
        (FakeCupy("b"), 0, "GPU-6120.* cannot be mapped: this process sees only GPU-6220"),
        (FakeCupy("a", "b", peer_access=False), 1, "GPU-6120.* cannot be mapped on GPU-6220.*: these GPUs have no"),
    ],
)
def test_memory_of_a_gpu_out_of_reach_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy, device: int, message: str
) -> None:
    handles = driver(monkeypatch, FakeCupy("a")).allocate(SIZE).handles
    with pytest.raises(FailedPrecondition, match=message):
        driver(monkeypatch, cupy, device).open(handles)
    assert cupy.calls == []


def test_memory_of_the_same_gpu_needs_no_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = driver(monkeypatch, FakeCupy("a")).allocate(SIZE).handles
    cupy = FakeCupy("z", "a", peer_access=False)
    assert driver(monkeypatch, cupy, 1).open(handles).memory.numel() == SIZE


def test_a_uuid_with_a_zero_byte_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy("a\0b")
    slab = driver(monkeypatch, cupy).allocate(SIZE)
    assert slab.handles[-16:] == uuid_of("a\0b").bytes
    assert len(slab.handles) == size_bytes(HANDLES)
    assert driver(monkeypatch, cupy).open(slab.handles).memory.numel() == SIZE


@pytest.mark.parametrize("failing", ["ipcGetMemHandle", "ipcGetEventHandle", "Event"])
def test_memory_that_cuda_does_not_export_is_reported_as_a_plane_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    cupy = FakeCupy("a")
    vars(cupy.cuda if failing == "Event" else cupy.cuda.runtime)[failing] = refused
    with pytest.raises(
        FailedPrecondition, match=r"plane 'cuda': memory cannot be exported .* on GPU 0: invalid argument"
    ):
        driver(monkeypatch, cupy).allocate(SIZE)


def test_an_event_that_cannot_be_waited_for_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy("a")
    cupy.cuda.runtime.streamWaitEvent = refused
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=5))
    with pytest.raises(FailedPrecondition, match=r"plane 'cuda': an event cannot be .* on GPU 0: invalid argument"):
        driver(monkeypatch, cupy).wait(SimpleNamespace(ptr=67))


def test_a_lost_gpu_is_not_reported_as_a_plane_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends with the error: another one may be able to use the GPU."""
    cupy = FakeCupy("a")
    cupy.cuda.Memory = cupy.cuda.runtime.memGetInfo = cupy.cuda.runtime.eventRecord = refused
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=5))
    owner = driver(monkeypatch, cupy)
    with pytest.raises(CudaError):
        owner.allocate(SIZE)
    with pytest.raises(CudaError):
        owner.record(SimpleNamespace(ptr=67))


def test_memory_that_torch_keeps_is_freed_before_memory_counts_as_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy("a")
    cupy.kept_by_torch = True
    cupy.cuda.runtime.memGetInfo = lambda: (1, 80)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(cupy, "kept_by_torch", False))
    assert driver(monkeypatch, cupy).allocate(SIZE).memory.numel() == SIZE
    cupy.kept_by_torch = True
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(ResourceExhausted, match="GPU 0 has 1 of 80 bytes free, a region needs 5000"):
        driver(monkeypatch, cupy).allocate(SIZE)
