"""Implements the plane `grpc`: copies regions between processes in gRPC messages.

The owner serves its regions with `TensorService`. A peer keeps a mirror of each region, pulls what it will read into
the mirror and pushes what it has written from it. This is the slowest plane, and the only one that works between any
two processes.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
import torch
from torch import Tensor

from podrace import rpc
from podrace.digests import digest
from podrace.errors import BAD_DIGEST, DataLoss, InvalidArgument
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc
from podrace.tensor.v1.tensor_pb2 import (
    ReadTensorsRequest,
    ReadTensorsResponse,
    TensorChunk,
    TensorRef,
    WriteTensorsRequest,
    WriteTensorsResponse,
)
from podrace.tensor_transport.boxes import Box, split
from podrace.tensor_transport.codec import element_type, size_bytes
from podrace.tensor_transport.mirrors import MirrorPlane

CHUNK_BYTES = 2**20
DEADLINE_SECONDS = 60.0
SCHEME = "grpc"


class GrpcPlane(MirrorPlane):
    """Regions of this process that other processes read and write by messages. See Plane for the methods.

    Attributes:
        address: Address of the TensorService of this process; empty: it creates no regions.
    """

    def __init__(self, address: str = "") -> None:
        """Starts without regions and connections.

        Args:
            address: Address of the TensorService of this process; empty: it creates no regions.
        """
        super().__init__(SCHEME, address)

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Reads tensors of other processes into their mirrors; raises as Plane.pull does."""
        for address, group in self.of_others(refs):
            views = self.open(group)
            missing = sum(size_bytes(ref.spec) for ref in group)
            stub: Any = pb_grpc.TensorServiceStub(self.channel(address))
            request = ReadTensorsRequest(tensors=group)
            async for response in rpc.stream(stub.ReadTensors, request, deadline_seconds=DEADLINE_SECONDS):
                name = response.chunk.tensor.spec.name
                if name not in views:
                    raise DataLoss(f"{SCHEME}:{address} sent tensor {name!r}, which was not requested")
                put(views[name], response.chunk)
                missing -= len(response.chunk.data)
            if missing:
                raise DataLoss(f"{SCHEME}:{address}: the stream ended {missing} bytes too early")

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Writes boxes of the mirrors back; raises as Plane.push does."""
        for address, group in self.of_others(refs):
            views = self.open(group)
            stub: Any = pb_grpc.TensorServiceStub(self.channel(address))
            requests = (
                WriteTensorsRequest(chunk=chunk_of(ref, views[ref.spec.name], piece))
                for ref in group
                for box in boxes[ref.spec.name]
                for piece in pieces(ref, box)
            )
            await rpc.send(stub.WriteTensors, requests, deadline_seconds=DEADLINE_SECONDS)


class TensorServicer(pb_grpc.TensorServiceServicer):
    """Serves the regions of a GrpcPlane."""

    def __init__(self, plane: GrpcPlane) -> None:
        """Serves the regions of `plane`, which must have the address of this service."""
        self._plane = plane

    async def ReadTensors(
        self, request: ReadTensorsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ReadTensorsResponse]:
        """Streams tensors in chunks; see tensor.proto."""
        for ref in request.tensors:
            # Checked before it is cut: a reference much larger than its region would take very long to cut.
            self._view(ref)
            for box in pieces(ref, Box.whole(ref.spec.shape)):
                # Opened for each piece, because the region may be handed out again meanwhile.
                yield ReadTensorsResponse(chunk=chunk_of(ref, self._view(ref), box))

    async def WriteTensors(
        self, requests: AsyncIterable[WriteTensorsRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> WriteTensorsResponse:
        """Writes chunks into tensors; see tensor.proto."""
        written = 0
        async for request in requests:
            put(self._view(request.chunk.tensor), request.chunk)
            written += len(request.chunk.data)
        return WriteTensorsResponse(size_bytes=written)

    def _view(self, ref: TensorRef) -> Tensor:
        return self._plane.open_own([ref])[ref.spec.name]


# --- chunks --------------------------------------------------------------------------------------------------------


def pieces(ref: TensorRef, box: Box) -> list[Box]:
    """Cuts a box into boxes that fit one chunk each."""
    return list(split(box, CHUNK_BYTES // element_type(ref.spec).itemsize))


def chunk_of(ref: TensorRef, tensor: Tensor, box: Box) -> TensorChunk:
    """Returns a box of a tensor as a message."""
    data = tensor[box.index].reshape(-1).view(torch.uint8).numpy().tobytes()
    return TensorChunk(tensor=ref, starts=box.starts, sizes=box.sizes, data=data, digest=digest(data))


def put(tensor: Tensor, chunk: TensorChunk) -> None:
    """Writes a chunk into its tensor.

    Raises:
        InvalidArgument: The chunk does not fit the tensor.
        DataLoss: The chunk is damaged (BAD_DIGEST).
    """
    name, box = chunk.tensor.spec.name, Box(tuple(chunk.starts), tuple(chunk.sizes))
    if not box.fits(tensor.shape) or len(chunk.data) != box.elements * tensor.element_size():
        raise InvalidArgument(
            f"a chunk of {len(chunk.data)} bytes, {list(box.sizes)} elements starting at {list(box.starts)}, does not"
            f" fit tensor {name!r} of {list(tensor.shape)}"
        )
    if digest(chunk.data) != chunk.digest:
        raise DataLoss(f"a chunk of tensor {name!r} is damaged: its digest differs", reason=BAD_DIGEST)
    if box.elements:
        values = torch.frombuffer(bytearray(chunk.data), dtype=tensor.dtype)
        tensor[box.index] = values.view(box.sizes)
