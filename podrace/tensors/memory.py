"""Owns the plane `memory`: both ends are in one process and hold the same MemoryPlane."""

import mmap
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from podrace.errors import AlreadyExists, FailedPrecondition
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensors.layout import check_name, mapped, open_tensors, place, write_header
from podrace.tensors.plane import Region


class MemoryPlane:
    """Regions of this process, in anonymous memory. See Plane for the verbs."""

    scheme = "memory"

    def __init__(self) -> None:
        """Begins without regions."""
        self._blocks: dict[str, Tensor] = {}
        self._regions: dict[str, Region] = {}

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for some tensors; raises as Plane.create does."""
        check_name(name)
        _, size = place(specs)
        plane_uri = f"{self.scheme}:{name}"
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
