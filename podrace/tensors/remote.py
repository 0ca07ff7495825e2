"""Owns the plane `grpc`: regions of one process, copied to and from peers that share no memory with it.

The owner serves them by `TensorService`; a peer keeps a mirror of each region, pulls into it what it will read and
pushes from it what it has written. Slower than every other plane, and never in the way: any two processes have it.
"""

import mmap
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import grpc
import torch
from torch import Tensor

from podrace import rpc
from podrace.checkpoints.store import digest
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import (
    ReadTensorsRequest,
    ReadTensorsResponse,
    TensorChunk,
    TensorRef,
    TensorSpec,
    WriteTensorsRequest,
    WriteTensorsResponse,
)
from podrace.tensors.boxes import Box, split
from podrace.tensors.codec import element_type, size_bytes
from podrace.tensors.layout import GENERATION_WORD, header, mapped, open_tensors
from podrace.tensors.memory import MemoryPlane
from podrace.tensors.plane import Region

BAD_DIGEST = "ERROR_REASON_BAD_DIGEST"
CHUNK_BYTES = 2**20
DEADLINE_SECONDS = 60.0
SCHEME = "grpc"


class GrpcPlane:
    """Regions of this process that others read and write by messages. See Plane for the verbs."""

    scheme = SCHEME

    def __init__(self, address: str = "") -> None:
        """Begins without regions; dials nobody yet.

        Args:
            address: Where the TensorService of this process answers; empty: nothing is created here.
        """
        self._address = address
        self._own = MemoryPlane(f"{SCHEME}:{address}/")
        self._mirrors: dict[str, Tensor] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates memory for some tensors; raises as Plane.create does."""
        if not self._address:
            raise FailedPrecondition("plane 'grpc' owns nothing in a process without a TensorService")
        return self._own.create(name, specs)

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors: in place where they are ours, else in the mirror; raises as Plane.open does.

        That a region of another process is still there, and of which generation, `pull` and `push` find out.
        """
        if refs and all(address_of(ref) == self._address for ref in refs):
            return self._own.open(refs)
        for plane_uri, group in _by_uri(refs):
            self._reflect(plane_uri, group)
        return open_tensors(refs, self._mirrors.__getitem__)

    def _reflect(self, plane_uri: str, refs: Sequence[TensorRef]) -> None:
        """Makes a mirror large enough, and of the generation of the references: only they can be checked here."""
        end = max(ref.offset_bytes + size_bytes(ref.spec) for ref in refs)
        mirror = self._mirrors.get(plane_uri)
        if mirror is None or mirror.numel() < end:
            mirror = self._mirrors[plane_uri] = mapped(-1, end, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        header(mirror)[GENERATION_WORD] = refs[0].generation

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Reads tensors of other processes into their mirrors; raises as Plane.pull does."""
        for address, group in _by_address(refs):
            if address == self._address:
                continue
            views = self.open(group)
            awaited = sum(size_bytes(ref.spec) for ref in group)
            stub: Any = pb_grpc.TensorServiceStub(self._channel(address))
            request = ReadTensorsRequest(tensors=group)
            async for response in rpc.stream(stub.ReadTensors, request, deadline_seconds=DEADLINE_SECONDS):
                put(views[response.chunk.tensor.spec.name], response.chunk)
                awaited -= len(response.chunk.data)
            if awaited:
                raise DataLoss(f"{SCHEME}:{address}: the stream ended {awaited} bytes before the end")

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Writes boxes of the mirrors back; raises as Plane.push does."""
        for address, group in _by_address(refs):
            if address == self._address:
                continue
            views = self.open(group)
            stub: Any = pb_grpc.TensorServiceStub(self._channel(address))
            requests = (
                WriteTensorsRequest(chunk=chunk_of(ref, views[ref.spec.name], piece))
                for ref in group
                for piece in pieces(ref, boxes[ref.spec.name])
            )
            await rpc.send(stub.WriteTensors, requests, deadline_seconds=DEADLINE_SECONDS)

    def forget(self, plane_uri: str) -> None:
        """Drops a mirror."""
        self._mirrors.pop(plane_uri, None)

    def close(self) -> None:
        """Closes the regions created here, drops all mirrors, and hangs up."""
        self._own.close()
        self._mirrors.clear()
        self._channels.clear()

    def _channel(self, address: str) -> grpc.aio.Channel:
        # Without retries: whoever hands a slot out anew after a failure must not meet a write of before.
        if address not in self._channels:
            self._channels[address] = rpc.connect(address)
        return self._channels[address]


class TensorServicer(pb_grpc.TensorServiceServicer):
    """Serves the regions of a GrpcPlane."""

    def __init__(self, plane: GrpcPlane) -> None:
        """Serves what `plane` has created, at the address it was given."""
        self._plane = plane

    async def ReadTensors(
        self, request: ReadTensorsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ReadTensorsResponse]:
        """Streams; see the contract."""
        for ref in request.tensors:
            for box in pieces(ref, Box.whole(ref.spec.shape)):
                # Opened for each piece: it may be handed out anew meanwhile.
                yield ReadTensorsResponse(chunk=chunk_of(ref, self._view(ref), box))

    async def WriteTensors(
        self, requests: AsyncIterable[WriteTensorsRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> WriteTensorsResponse:
        """Writes; see the contract."""
        written = 0
        async for request in requests:
            put(self._view(request.chunk.tensor), request.chunk)
            written += len(request.chunk.data)
        return WriteTensorsResponse(size_bytes=written)

    def _view(self, ref: TensorRef) -> Tensor:
        if address_of(ref) != self._plane._address:
            raise InvalidArgument(
                f"{ref.plane_uri} is not served here, but at {address_of(ref) or 'no address at all'}"
            )
        return self._plane.open([ref])[ref.spec.name]


# --- chunks --------------------------------------------------------------------------------------------------------


def address_of(ref: TensorRef) -> str:
    """Where the owner of a tensor answers.

    Raises:
        InvalidArgument: The plane URI is malformed.
    """
    scheme, _, rest = ref.plane_uri.partition(":")
    address, separator, name = rest.rpartition("/")
    if scheme != SCHEME or not separator or not name:
        raise InvalidArgument(f"plane URI {ref.plane_uri!r} must be '{SCHEME}:', an address, '/' and a name")
    return address


def pieces(ref: TensorRef, box: Box) -> list[Box]:
    """The boxes of a box that fit one chunk each."""
    return list(split(box, CHUNK_BYTES // element_type(ref.spec).itemsize))


def chunk_of(ref: TensorRef, tensor: Tensor, box: Box) -> TensorChunk:
    """A box of a tensor as a message."""
    data = tensor[box.index].reshape(-1).view(torch.uint8).numpy().tobytes()
    return TensorChunk(tensor=ref, starts=box.starts, sizes=box.sizes, data=data, digest=digest(data))


def put(tensor: Tensor, chunk: TensorChunk) -> None:
    """Writes a chunk into its tensor.

    Raises:
        InvalidArgument: It does not fit.
        DataLoss: It is damaged (BAD_DIGEST).
    """
    name, box = chunk.tensor.spec.name, Box(tuple(chunk.starts), tuple(chunk.sizes))
    if not box.fits(tensor.shape) or len(chunk.data) != box.elements * tensor.element_size():
        raise InvalidArgument(
            f"a chunk of {len(chunk.data)} bytes, {list(box.sizes)} elements from {list(box.starts)} on, does not fit"
            f" tensor {name!r} of {list(tensor.shape)}"
        )
    if digest(chunk.data) != chunk.digest:
        raise DataLoss(f"a chunk of tensor {name!r} arrived damaged: its digest differs", reason=BAD_DIGEST)
    if box.elements:
        values = torch.frombuffer(bytearray(chunk.data), dtype=tensor.dtype)
        tensor[box.index] = values.view(box.sizes)


def _by_uri(refs: Sequence[TensorRef]) -> list[tuple[str, list[TensorRef]]]:
    ordered = sorted(refs, key=lambda ref: ref.plane_uri)
    return [(uri, list(group)) for uri, group in groupby(ordered, key=lambda ref: ref.plane_uri)]


def _by_address(refs: Sequence[TensorRef]) -> list[tuple[str, list[TensorRef]]]:
    ordered = sorted(refs, key=address_of)
    return [(address, list(group)) for address, group in groupby(ordered, key=address_of)]
