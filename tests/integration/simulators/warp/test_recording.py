"""On which stream of a GPU the kernels of MuJoCo Warp are recorded and replayed; CUDA is faked."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import warp
from fake_streams import FakeCuda

from simulators.warp.engine import WarpPhysics


class FakeWarp:
    """What recording calls of Warp; lists what kernels are launched on and whether they are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream: Any = "warp's own"
        self.launched: list[tuple[Any, bool]] = []
        self.replayed: list[Any] = []
        self._capturing: Any = None
        for name, value in {
            "ScopedDevice": contextlib.nullcontext,
            "ScopedStream": self.use,
            "ScopedCapture": self.capture,
            "stream_from_torch": lambda stream: stream.name,
            "synchronize_device": lambda device: None,
            "capture_launch": lambda graph, stream: self.replayed.append((graph, stream)),
        }.items():
            monkeypatch.setattr(warp, name, value)

    def launch(self) -> None:
        self.launched.append((self.stream, self.stream == self._capturing))

    @contextlib.contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextlib.contextmanager
    def capture(self, device: Any, stream: Any = None) -> Iterator[Any]:
        self._capturing = stream or self.stream
        yield FakeGraph()
        self._capturing = None


class FakeGraph:
    graph = "graph"


def test_kernels_are_recorded_on_a_stream_that_does_not_wait_for_the_default_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise work of other threads on the default stream would fail, and end the capture."""
    cuda, fake = FakeCuda().install(monkeypatch), FakeWarp(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    physics: Any = WarpPhysics.__new__(WarpPhysics)
    physics._device = physics._warp_device = torch.device("cuda:0")
    replay = physics._recorded(fake.launch)
    (compiled, *recorded) = fake.launched
    assert compiled == ("warp's own", False)
    assert recorded == [("stream 1", True)]
    assert cuda.streams == 1
    replay()
    assert fake.replayed == [("graph", "default")]
