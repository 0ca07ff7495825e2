"""Owns the plane `memory`: both ends are in one process and hold the same MemoryPlane."""

import mmap
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from podrace.errors import AlreadyExists, FailedPrecondition
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensors.boxes import Box
from podrace.tensors.layout import check_name, mapped, open_tensors, place, write_header
from podrace.tensors.plane import Region


class MemoryPlane:
    """Regions of this process, in anonymous memory. See Plane for the verbs."""

    scheme = "memory"

    def __init__(self, prefix: str = "memory:") -> None:
        """Begins without regions.

        Args:
            prefix: Begins the plane URI of every region.
        """
        self._prefix = prefix
        self._blocks: dict[str, Tensor] = {}
        self._regions: dict[str, Region] = {}

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for some tensors; raises as Plane.create does."""
        check_name(name)
        _, size = place(specs)
        plane_uri = f"{self._prefix}{name}"
        if plane_uri in self._blocks:
            raise AlreadyExists(f"region {plane_uri} is there already; close it first")
        memory = mapped(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        write_header(memory)
        self._blocks[plane_uri] = memory
        self._regions[plane_uri] = Region(plane_uri, memory, specs, partial(self._release, plane_uri))
        return self._regions[plane_uri]

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors in place; raises as Plane.open does."""
        return open_tensors(refs, self._block)

    def forget(self, plane_uri: str) -> None:
        """Does nothing: the peer views the owner's own block, and no mapping of it is kept."""

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Does nothing: both ends see one memory."""

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Does nothing: both ends see one memory."""

    def close(self) -> None:
        """Closes all regions."""
        for region in list(self._regions.values()):
            region.close()

    def _block(self, plane_uri: str) -> Tensor:
        memory = self._blocks.get(plane_uri)
        if memory is None:
            raise FailedPrecondition(
                f"{plane_uri} is not there: its owner closed it, or the two ends do not share one MemoryPlane"
            )
        return memory

    def _release(self, plane_uri: str) -> None:
        del self._blocks[plane_uri], self._regions[plane_uri]
