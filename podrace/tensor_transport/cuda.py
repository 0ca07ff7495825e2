"""Implements the plane `cuda`: GPU memory that the processes of one host map by CUDA IPC.

A region is a slab of GPU memory and a small file of the plane `shared`, which holds the header and the handles that
open the slab. Generations are therefore compared without accessing the GPU. An event that only the owner records orders
its writes before the reads of its peers, so that the owner never waits for the GPU. A peer waits for its own work
before it releases a region.

CUDA forbids freeing memory that another process maps. A slab that is no longer used is therefore kept for the next
region of its size, until the owner knows that its peers have dropped their mappings, or the plane is closed after the
peers have closed theirs. The driver frees the memory of a killed process.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from podrace.errors import FailedPrecondition, ResourceExhausted
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.codec import LAYOUT_VERSION, size_bytes
from podrace.tensor_transport.layout import HEADER_BYTES, header, open_tensors, place
from podrace.tensor_transport.plane import Region
from podrace.tensor_transport.shared import FOLDER, SharedPlane

SCHEME = "cuda"
HANDLE_BYTES = 64
SIZE_BYTES, UUID_BYTES = 8, 16
HANDLES = TensorSpec(
    name="handles",
    data_type=tensor_pb2.DATA_TYPE_UINT8,
    shape=[2 * HANDLE_BYTES + SIZE_BYTES + UUID_BYTES],
    layout_version=LAYOUT_VERSION,
)
"""Follows the header: handle of the memory, handle of the event, size of the slab in bytes (little-endian), UUID of its
GPU."""


@dataclass(frozen=True)
class Slab:
    """GPU memory, with the event that orders accesses to it."""

    memory: Tensor
    """uint8 [size]."""
    event: Any
    """An object of the driver."""
    handles: bytes
    """Opens memory and event in another process; laid out as HANDLES."""


class Driver(Protocol):
    """The operations of CUDA that the plane uses.

    slab = driver.allocate(size)        # owner
    same = driver.open(slab.handles)    # peer
    driver.record(slab.event)           # owner, after writing and before it sends a message
    driver.wait(same.event)             # peer, after it received the message and before reading
    wait = driver.submitted()           # peer, after writing
    wait()                              # peer, in any thread, before it replies
    """

    def allocate(self, size: int) -> Slab:
        """Allocates memory with cudaMalloc and creates an event.

        Raises:
            ResourceExhausted: Memory is short.
            FailedPrecondition: The driver cannot share memory with other processes.
        """
        ...

    def open(self, handles: bytes) -> Slab:
        """Maps memory of another process while the tensor exists; raises FailedPrecondition if that fails."""
        ...

    def zero(self, memory: Tensor) -> None:
        """Fills memory with zeros."""
        ...

    def record(self, event: Any) -> None:
        """Records the end of the work submitted to the GPU so far.

        Raises:
            RuntimeError: An error of CUDA, possibly of an earlier kernel; this process cannot use the GPU any more.
        """
        ...

    def wait(self, event: Any) -> None:
        """Lets work that is submitted from now on start after the recorded point.

        Raises:
            FailedPrecondition: CUDA refuses it.
        """
        ...

    def submitted(self) -> Callable[[], None]:
        """Returns a function that waits, in any thread, for the work submitted to the GPU so far."""
        ...


class CudaRegion(Region):
    """A region that records an event on the GPU when it is handed out."""

    def __init__(
        self,
        plane_uri: str,
        slab: Slab,
        specs: Sequence[TensorSpec],
        release: Any,
        words: Tensor,
        driver: Driver,
    ) -> None:
        """As Region."""
        super().__init__(plane_uri, slab.memory, specs, release, words)
        self._event, self._driver = slab.event, driver

    def refs(self) -> list[TensorRef]:
        """As Region.refs; also orders the writes so far before the work of the peer."""
        refs = super().refs()
        self._driver.record(self._event)
        return refs


class CudaPlane:
    """Regions on a GPU that peers on the same host map. See Plane for the methods."""

    scheme = SCHEME
    copies = False

    def __init__(
        self, prefix: str, make_driver: Callable[[], Driver], folder: Path = FOLDER, *, group: int = 0
    ) -> None:
        """Starts without regions.

        Args:
            prefix: As of SharedPlane.
            make_driver: Returns the driver of the GPU whose memory is allocated or mapped; called on first use, and may
                raise Unimplemented if there is no GPU.
            folder: Folder of the header files.
            group: As of SharedPlane, for the header files.
        """
        self._headers = SharedPlane(prefix, folder, group=group)
        self._make_driver = make_driver
        self._slabs: dict[str, Slab] = {}
        self._spare: defaultdict[int, list[Slab]] = defaultdict(list)
        self._regions: dict[str, Region] = {}
        self._opened: dict[str, Slab] = {}

    @property
    def spare_bytes(self) -> int:
        """Memory that is kept for later regions; a region that needs more than one of its pieces frees all of them."""
        return sum(size * len(slabs) for size, slabs in self._spare.items())

    @cached_property
    def _driver(self) -> Driver:
        return self._make_driver()

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for tensors; raises as Plane.create does."""
        (_, size), driver = place(specs), self._driver
        header_region = self._headers.create(name, [HANDLES])
        try:
            slab = self._take(size)
            header_region["handles"].copy_(torch.frombuffer(bytearray(slab.handles), dtype=torch.uint8))
        except BaseException:
            header_region.close()
            raise
        plane_uri = f"{SCHEME}:{header_region.plane_uri.partition(':')[2]}"
        self._slabs[plane_uri] = slab
        words = header(self._headers.block(header_region.plane_uri))
        release = partial(self._release, plane_uri, header_region)
        self._regions[plane_uri] = CudaRegion(plane_uri, slab, specs, release, words, driver)
        return self._regions[plane_uri]

    def _take(self, size: int) -> Slab:
        """Returns a slab of zeros: a spare one or a new one. Frees spare slabs of other sizes if memory is short."""
        if self._spare[size]:
            slab = self._spare[size].pop()
        else:
            try:
                slab = self._driver.allocate(size)
            except ResourceExhausted:
                if not any(self._spare.values()):
                    raise
                self._spare.clear()
                slab = self._driver.allocate(size)
        self._driver.zero(slab.memory)
        return slab

    def free_spares(self) -> None:
        """Frees the memory of closed regions; only when no peer maps one of them any more."""
        self._spare.clear()

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors in place; raises as Plane.open does."""
        return open_tensors(refs, lambda plane_uri: self._slab(plane_uri).memory, self._words)

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Orders the owner's writes before the reads of this process from now on."""
        for plane_uri in {ref.plane_uri for ref in refs} - self._slabs.keys():
            self._driver.wait(self._slab(plane_uri).event)

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Waits until the writes of this process have finished: one event cannot signal the work of several peers."""
        if {ref.plane_uri for ref in refs} - self._slabs.keys():
            # In a thread: the event loop answers other calls meanwhile.
            await asyncio.to_thread(self._driver.submitted())

    def forget(self, plane_uri: str) -> None:
        """Drops the mapping of a region; it is unmapped when no view is left."""
        self._opened.pop(plane_uri, None)
        self._headers.forget(_header_uri(plane_uri))

    def close(self) -> None:
        """Frees the memory allocated here, which no peer may map any more, and drops all mappings."""
        for region in list(self._regions.values()):
            region.close()
        self._spare.clear()
        self._opened.clear()
        self._headers.close()

    def _slab(self, plane_uri: str) -> Slab:
        if plane_uri in self._slabs:
            return self._slabs[plane_uri]
        # Read each time: a later region of the same name may have other memory.
        handles = self._block(plane_uri)[HEADER_BYTES : HEADER_BYTES + size_bytes(HANDLES)].numpy().tobytes()
        slab = self._opened.get(plane_uri)
        if slab is None or slab.handles != handles:
            slab = self._opened[plane_uri] = self._driver.open(handles)
        return slab

    def _words(self, plane_uri: str) -> Tensor:
        return header(self._block(plane_uri))

    def _block(self, plane_uri: str) -> Tensor:
        try:
            return self._headers.block(_header_uri(plane_uri))
        except FailedPrecondition:
            self._opened.pop(plane_uri, None)
            raise

    def _release(self, plane_uri: str, header_region: Region) -> None:
        slab = self._slabs.pop(plane_uri)
        del self._regions[plane_uri]
        self._spare[slab.memory.numel()].append(slab)
        header_region.close()


def _header_uri(plane_uri: str) -> str:
    return f"{SharedPlane.scheme}:{plane_uri.removeprefix(f'{SCHEME}:')}"
