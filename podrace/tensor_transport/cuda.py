"""Owns the plane `cuda`: memory of a GPU that the processes of one host map by CUDA IPC.

A region is a slab of the GPU and a small file of the plane `shared`, which holds its header and the handles that open
the slab: generations are compared without a word to the GPU. What the owner writes is ordered before what its peers
read by an event that it alone records, so that it never waits for the GPU; a peer waits for its own work before it
hands a region back.

CUDA forbids to free memory that another process still maps. So a slab that is given up is kept for the next region of
its size, and all go when the plane is closed, after the peers have closed theirs; the driver frees what a killed
process had.
"""

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
HANDLES = TensorSpec(
    name="handles", data_type=tensor_pb2.DATA_TYPE_UINT8, shape=[2 * HANDLE_BYTES + 8], layout_version=LAYOUT_VERSION
)
"""Behind the header: the handle of the memory, that of the event, the size of the slab (little-endian)."""


@dataclass(frozen=True)
class Slab:
    """Memory of a GPU with the event that orders what happens to it."""

    memory: Tensor
    """uint8 [size]."""
    event: Any
    """As the driver knows it."""
    handles: bytes
    """Opens both in another process: as HANDLES."""


class Driver(Protocol):
    """What the plane wants of CUDA.

    slab = driver.allocate(size)        # the owner
    same = driver.open(slab.handles)    # the peer
    driver.record(slab.event)           # the owner has written, before it says so
    driver.wait(same.event)             # the peer reads, after it was told
    driver.finish()                     # the peer has written, before it says so
    """

    def allocate(self, size: int) -> Slab:
        """Takes memory by plain cudaMalloc, and makes an event; raises ResourceExhausted where there is no room."""
        ...

    def open(self, handles: bytes) -> Slab:
        """Maps what another process allocated, until the tensor is gone; raises FailedPrecondition if it cannot."""
        ...

    def zero(self, memory: Tensor) -> None:
        """Fills with zeros."""
        ...

    def record(self, event: Any) -> None:
        """Notes the point that the work given to the GPU so far ends at."""
        ...

    def wait(self, event: Any) -> None:
        """Has the work given to the GPU from now on begin after the noted point."""
        ...

    def finish(self) -> None:
        """Waits for the work given to the GPU so far."""
        ...


class CudaRegion(Region):
    """A region whose hand-overs are noted on the GPU."""

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
        """As Region.refs; what was written so far is ordered before what the peer does."""
        refs = super().refs()
        self._driver.record(self._event)
        return refs


class CudaPlane:
    """Regions on a GPU that peers of the same host map. See Plane for the verbs."""

    scheme = SCHEME

    def __init__(self, prefix: str, make_driver: Callable[[], Driver], folder: Path = FOLDER) -> None:
        """Begins without regions.

        Args:
            prefix: As of SharedPlane.
            make_driver: Of the GPU that memory is allocated on, or mapped into; called when it is first needed, and may
                raise Unimplemented where there is none.
            folder: Where the headers lie.
        """
        self._heads = SharedPlane(prefix, folder)
        self._make_driver = make_driver
        self._slabs: dict[str, Slab] = {}
        self._spare: defaultdict[int, list[Slab]] = defaultdict(list)
        self._regions: dict[str, Region] = {}
        self._opened: dict[str, Slab] = {}

    @cached_property
    def _driver(self) -> Driver:
        return self._make_driver()

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for some tensors; raises as Plane.create does."""
        (_, size), driver = place(specs), self._driver
        head = self._heads.create(name, [HANDLES])
        try:
            slab = self._take(size)
        except ResourceExhausted:
            head.close()
            raise
        head["handles"].copy_(torch.frombuffer(bytearray(slab.handles), dtype=torch.uint8))
        plane_uri = f"{SCHEME}:{head.plane_uri.partition(':')[2]}"
        self._slabs[plane_uri] = slab
        words = header(self._heads.block(head.plane_uri))
        release = partial(self._release, plane_uri, head)
        self._regions[plane_uri] = CudaRegion(plane_uri, slab, specs, release, words, driver)
        return self._regions[plane_uri]

    def _take(self, size: int) -> Slab:
        """A slab of zeros: a spare one, or a new one, for which spare ones of other sizes may have to go."""
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

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors in place; raises as Plane.open does."""
        return open_tensors(refs, lambda plane_uri: self._slab(plane_uri).memory, self._words)

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Orders what the owner wrote before what is read here from now on."""
        for plane_uri in {ref.plane_uri for ref in refs} - self._slabs.keys():
            self._driver.wait(self._slab(plane_uri).event)

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Waits until what was written here is there: one event cannot tell the owner of several peers."""
        if {ref.plane_uri for ref in refs} - self._slabs.keys():
            self._driver.finish()

    def forget(self, plane_uri: str) -> None:
        """Drops the mapping of a region; it is unmapped when no view is left."""
        self._opened.pop(plane_uri, None)
        self._heads.forget(_head_uri(plane_uri))

    def close(self) -> None:
        """Frees the memory taken here, which no peer may map any more, and drops all mappings."""
        for region in list(self._regions.values()):
            region.close()
        self._spare.clear()
        self._opened.clear()
        self._heads.close()

    def _slab(self, plane_uri: str) -> Slab:
        if plane_uri in self._slabs:
            return self._slabs[plane_uri]
        # Looked at each time: a successor of the same name may have other memory.
        handles = self._block(plane_uri)[HEADER_BYTES : HEADER_BYTES + size_bytes(HANDLES)].numpy().tobytes()
        slab = self._opened.get(plane_uri)
        if slab is None or slab.handles != handles:
            slab = self._opened[plane_uri] = self._driver.open(handles)
        return slab

    def _words(self, plane_uri: str) -> Tensor:
        return header(self._block(plane_uri))

    def _block(self, plane_uri: str) -> Tensor:
        try:
            return self._heads.block(_head_uri(plane_uri))
        except FailedPrecondition:
            self._opened.pop(plane_uri, None)
            raise

    def _release(self, plane_uri: str, head: Region) -> None:
        slab = self._slabs.pop(plane_uri)
        del self._regions[plane_uri]
        self._spare[slab.memory.numel()].append(slab)
        head.close()


def _head_uri(plane_uri: str) -> str:
    return f"{SharedPlane.scheme}:{plane_uri.removeprefix(f'{SCHEME}:')}"
