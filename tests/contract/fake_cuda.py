"""Simulates a GPU in the memory of this process, with several drivers, for tests of the plane `cuda`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from podrace.errors import FailedPrecondition, ResourceExhausted
from podrace.tensor_transport.cuda import HANDLE_BYTES, SIZE_BYTES, UUID_BYTES, Slab
from podrace.tensor_transport.layout import mapped


@dataclass
class Gpu:
    """State shared by all drivers."""

    capacity: int = 2**40
    slabs: WeakValueDictionary[bytes, Slab] = field(default_factory=WeakValueDictionary)
    """Slabs by their handles; freed when no tensor refers to them."""
    numbers: Any = field(default_factory=count)


class FakeDriver:
    """The driver of one process.

    Attributes:
        log: The calls of record, wait, submitted and of what submitted returned (`finish`), as (name, number of the
            event or -1).
        waited_in: The threads that waited for submitted work.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.log: list[tuple[str, int]] = []
        self.opened = 0
        self.waited_in: list[threading.Thread] = []

    def allocate(self, size: int) -> Slab:
        gpu = self._gpu
        if sum(slab.memory.numel() for slab in gpu.slabs.values()) + size > gpu.capacity:
            raise ResourceExhausted("the GPU is full")
        number = next(gpu.numbers)
        handles = b"".join(
            (
                number.to_bytes(HANDLE_BYTES, "little"),
                number.to_bytes(HANDLE_BYTES, "big"),
                size.to_bytes(SIZE_BYTES, "little"),
                bytes(UUID_BYTES),
            )
        )
        # Contains what was there before.
        slab = Slab(mapped(-1, max(size, 1)).fill_(0xAA)[:size], number, handles)
        gpu.slabs[handles] = slab
        return slab

    def open(self, handles: bytes) -> Slab:
        self.opened += 1
        if handles not in self._gpu.slabs:
            raise FailedPrecondition("memory of another process cannot be mapped")
        return self._gpu.slabs[handles]

    def zero(self, memory: Tensor) -> None:
        memory.zero_()

    def record(self, event: Any) -> None:
        self.log.append(("record", event))

    def wait(self, event: Any) -> None:
        self.log.append(("wait", event))

    def submitted(self) -> Callable[[], None]:
        self.log.append(("submitted", -1))

        def finish() -> None:
            self.log.append(("finish", -1))
            self.waited_in.append(threading.current_thread())

        return finish
