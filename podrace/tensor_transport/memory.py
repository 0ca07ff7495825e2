"""Implements the plane `memory`: owner and peer are in one process and use the same MemoryPlane."""

import mmap
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from podrace.errors import AlreadyExists, FailedPrecondition, ResourceExhausted
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.layout import (
    HEADER_WORDS,
    check_name,
    header,
    mapped,
    open_tensors,
    place,
    write_words,
)
from podrace.tensor_transport.plane import Region


class MemoryPlane:
    """Regions of this process: anonymous memory, or memory of a GPU. See Plane for the methods."""

    copies = False

    def __init__(self, prefix: str = "memory:", device: torch.device | str = "cpu") -> None:
        """Starts without regions.

        Args:
            prefix: Prefix of the plane URI of every region: the scheme, a colon, and optionally more.
            device: Device of the memory.
        """
        self.scheme = prefix.partition(":")[0]
        self._prefix, self._device = prefix, torch.device(device)
        self._blocks: dict[str, Block] = {}
        self._regions: dict[str, Region] = {}

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for tensors; raises as Plane.create does."""
        check_name(name)
        _, size = place(specs)
        plane_uri = f"{self._prefix}{name}"
        if plane_uri in self._blocks:
            raise AlreadyExists(f"region {plane_uri} exists already; close it first")
        block = self._blocks[plane_uri] = Block(size, self._device)
        release = partial(self._release, plane_uri)
        self._regions[plane_uri] = Region(plane_uri, block.memory, specs, release, block.words)
        return self._regions[plane_uri]

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors in place; raises as Plane.open does."""
        return open_tensors(refs, lambda uri: self._block(uri).memory, lambda uri: self._block(uri).words)

    def own(self, plane_uri: str, name: str) -> Tensor | None:
        """Returns a tensor of a region of this process as it was created; None if there is none of this name."""
        region = self._regions.get(plane_uri)
        return region.get(name) if region else None

    def forget(self, plane_uri: str) -> None:
        """Not needed: the peer views the owner's own block, so there is no mapping to drop."""

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Not needed: both ends share the memory."""

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Not needed: both ends share the memory."""

    def close(self) -> None:
        """Closes all regions."""
        for region in list(self._regions.values()):
            region.close()

    def _block(self, plane_uri: str) -> "Block":
        block = self._blocks.get(plane_uri)
        if block is None:
            raise FailedPrecondition(
                f"{plane_uri} does not exist: its owner closed it, or the two ends do not share one MemoryPlane"
            )
        return block

    def _release(self, plane_uri: str) -> None:
        del self._blocks[plane_uri], self._regions[plane_uri]


class Block:
    """Memory filled with zeros, and its header, which is always readable without accessing a GPU.

    Attributes:
        memory: uint8 [size].
        words: The header, int64 [8] on the CPU.
    """

    def __init__(self, size: int, device: torch.device, *, header_apart: bool = False) -> None:
        """Allocates memory.

        Args:
            size: Bytes, at least 1.
            device: Where.
            header_apart: Whether the header has memory of its own, as it always has for memory of a GPU. Otherwise it
                is the first 64 bytes of the block.

        Raises:
            ResourceExhausted: There is not enough memory.
        """
        if device.type == "cpu":
            try:
                self.memory = mapped(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise ResourceExhausted(
                    f"this machine has not enough memory for a region of {size} bytes ({error.strerror}): make the"
                    " slots smaller"
                ) from error
            self.words = torch.zeros(HEADER_WORDS, dtype=torch.int64) if header_apart else header(self.memory)
            write_words(self.words, size)
            return
        try:
            self.memory = torch.zeros(size, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise ResourceExhausted(
                f"{device} has not enough memory for a region of {size} bytes: make the slots smaller"
            ) from error
        self.words = torch.zeros(HEADER_WORDS, dtype=torch.int64)
        write_words(self.words, size)
