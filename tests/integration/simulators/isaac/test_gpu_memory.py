"""Memory of a GPU shared with the server, with memory of the host in its place: no GPU was there to try it."""

import contextlib
import ctypes
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from podrace.errors import Unimplemented
from podrace.tensor_transport.cuda import HANDLE_BYTES, Slab
from podrace.tensor_transport.layout import view
from simulators.base import Space
from simulators.isaac.gpu_memory import share_on_gpu
from simulators.isaac.server.gpu_memory import GpuMemory
from simulators.isaac.server.serving import SharedLanes
from simulators.messages import step_specs

COUNT = 4
SPECS = list(
    step_specs(
        Space("continuous", (3,), torch.float32),
        Space("continuous", (2,), torch.float32, (-1.0,) * 2, (1.0,) * 2),
        COUNT,
    ).values()
)
HANDLE = bytes(range(HANDLE_BYTES))


class HostDriver:
    """Gives memory of the host, and remembers it for the other end."""

    def __init__(self) -> None:
        self.memory = torch.empty(0)

    def allocate(self, size: int) -> Slab:
        self.memory = torch.full((size,), 7, dtype=torch.uint8)
        return Slab(self.memory, None, HANDLE + b"rest")

    def zero(self, memory: Tensor) -> None:
        memory.zero_()

    def submitted(self) -> Callable[[], None]:
        return lambda: None


class Engine:
    """Returns numbers that follow from the action."""

    device = "cuda:0"
    actions = SimpleNamespace(kind="continuous")

    def step(self, action: Tensor) -> tuple[Tensor, ...]:
        observation = action.sum(1, keepdim=True).expand(-1, 3)
        ended = action[:, 0] > 0
        return observation, action[:, 1], ended, torch.zeros_like(ended), observation + 10.0


def server_of(driver: HostDriver, monkeypatch: pytest.MonkeyPatch, *, shift: int = 0) -> tuple[SharedLanes, Any]:
    """Makes the server's side, which maps the driver's memory; returns it, and the function that asks it."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    lanes = object.__new__(SharedLanes)
    lanes._engine, lanes._torch, lanes._device = Engine(), torch, torch.device("cuda:0")
    shapes = {spec.name: tuple(spec.shape) for spec in SPECS if spec.name != "probe"}
    lanes._memory = {name: torch.zeros(shape) for name, shape in shapes.items()}
    lanes._offered = None

    def mapped(
        handle: bytes, offsets: dict[str, int], shapes: dict[str, Any], device: torch.device, types: dict[str, str]
    ) -> Any:
        assert handle == HANDLE
        assert types == {"action": "<f4"}
        assert {spec.name: tuple(spec.shape) for spec in SPECS} == shapes
        memory = driver.memory if not shift else driver.memory.clone()
        return SimpleNamespace(tensors={spec.name: view(memory, offsets[spec.name], spec) for spec in SPECS})

    def ask(line: str) -> str:
        verb, _, argument = line.partition(" ")
        if verb == "use":
            lanes.use_gpu()
            return "done"
        return json.dumps({"reason": lanes.offer(**json.loads(argument), map_memory=mapped)})

    return lanes, ask


def test_a_step_is_written_into_the_memory_that_both_processes_map(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostDriver()
    lanes, ask = server_of(driver, monkeypatch)
    share, reason = share_on_gpu(ask, lambda: driver, SPECS)
    assert share is not None
    assert reason == ""
    assert not share.tensors["observation"].any()
    # The server computes on a device that this machine does not have, so its copy of the action stays where it is.
    lanes._device = torch.device("cpu")
    share.tensors["action"].copy_(torch.tensor([[1.0, 2.0], [-1.0, 3.0], [0.0, 4.0], [5.0, 6.0]]))
    lanes.step()
    assert share.tensors["observation"][:, 0].tolist() == [3.0, 2.0, 4.0, 11.0]
    assert share.tensors["reward"].tolist() == [2.0, 3.0, 4.0, 6.0]
    assert share.tensors["terminated"].tolist() == [True, False, False, True]
    assert share.tensors["final_observation"][0].tolist() == [13.0] * 3


def test_memory_that_is_not_the_same_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostDriver()
    lanes, ask = server_of(driver, monkeypatch, shift=1)
    before = lanes._memory
    assert share_on_gpu(ask, lambda: driver, SPECS) == (None, "the server wrote into other memory")
    assert lanes._memory is before


def test_the_file_is_used_where_the_server_cannot_map_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostDriver()
    lanes, _ = server_of(driver, monkeypatch)

    def refused(*arguments: object) -> Any:
        raise OSError("cuIpcOpenMemHandle failed with CUDA error 201")

    assert lanes.offer(HANDLE.hex(), {}, refused) == "OSError: cuIpcOpenMemHandle failed with CUDA error 201"
    lanes._device = torch.device("cpu")
    assert lanes.offer(HANDLE.hex(), {}) == "the simulator computes on cpu"
    with pytest.raises(ValueError, match="no memory of a GPU"):
        lanes.use_gpu()


def test_a_client_without_cuda_ipc_asks_nothing() -> None:
    def no_driver() -> Any:
        raise Unimplemented("plane 'cuda': package 'cupy' is not installed")

    def ask(line: str) -> str:
        raise AssertionError(line)

    assert share_on_gpu(ask, no_driver, SPECS) == (None, "plane 'cuda': package 'cupy' is not installed")


def test_the_handle_is_opened_by_the_driver_and_closed_if_torch_cannot_view_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened, closed, current = list[bytes](), list[int](), list[str]()

    class Open:
        argtypes: Any = None

        def __call__(self, pointer: Any, handle: Any, flags: int) -> int:
            assert current == ["cuda:1"], "the driver maps for the current GPU"
            opened.append(bytes(memoryview(handle)))
            pointer._obj.value = 4096
            return 0

    driver = SimpleNamespace(
        cuIpcOpenMemHandle_v2=Open(), cuIpcCloseMemHandle=lambda pointer: closed.append(pointer.value)
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    viewed = list[tuple[dict[str, Any], str]]()

    def as_tensor(elements: Any, device: str) -> Tensor:
        if len(viewed) == 2:
            raise RuntimeError("old torch")
        viewed.append((elements.__cuda_array_interface__, device))
        return torch.zeros(1)

    @contextlib.contextmanager
    def on_device(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    zeros = torch.zeros
    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device="cpu": zeros(*shape))
    monkeypatch.setattr(torch.cuda, "device", on_device)
    shapes = {"reward": (4,), "terminated": (4,)}
    memory = GpuMemory(HANDLE, {"reward": 64, "terminated": 128}, shapes, "cuda:1")
    assert memory.tensors.keys() == shapes.keys()
    assert opened == [HANDLE]
    assert [interface["data"] for interface, _ in viewed] == [(4160, False), (4224, False)]
    assert [interface["typestr"] for interface, _ in viewed] == ["<f4", "|b1"]
    assert closed == []
    with pytest.raises(RuntimeError, match="old torch"):
        GpuMemory(HANDLE, {"reward": 64}, shapes, "cuda:1")
    assert closed == [4096]
