"""Serves tensors of this process on the plane `grpc`, and records what is written to them."""

import hashlib
import math
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from podrace.conformance.spaces import CODES
from podrace.errors import BAD_DIGEST, DataLoss, FailedPrecondition, InvalidArgument
from podrace.tensor.v1 import tensor_pb2 as pb
from podrace.tensor.v1 import tensor_pb2_grpc as pb_grpc

ALIGNMENT = 64
"""`TensorRef.offset_bytes` is a multiple of it."""
LARGEST_CHUNK = 1 << 20


@dataclass
class Tensor:
    """One tensor of a block, in C order."""

    spec: pb.TensorSpec
    offset: int
    data: bytearray
    written: bytearray
    """1 for each element that was written."""

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return array(CODES[self.spec.data_type]).itemsize

    def boxes(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yields boxes of whole rows that fit into a chunk, as starts and sizes."""
        shape = list(self.spec.shape) or [1]
        row = self.size * math.prod(shape[1:])
        rows = max(1, LARGEST_CHUNK // max(row, 1))
        for start in range(0, shape[0], rows):
            yield [start, *[0] * (len(shape) - 1)], [min(rows, shape[0] - start), *shape[1:]]

    def runs(self, starts: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields the contiguous runs of elements of a box, as first element and number."""
        shape = list(self.spec.shape)
        strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        for index in product(*(range(size) for size in sizes[:-1])):
            place = zip((*index, 0), starts, strides, strict=True)
            yield sum((i + start) * stride for i, start, stride in place), sizes[-1]

    def read(self, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Returns the elements of a box."""
        return b"".join(
            self.data[at * self.size : (at + number) * self.size] for at, number in self.runs(starts, sizes)
        )

    def write(self, starts: Sequence[int], sizes: Sequence[int], data: bytes) -> None:
        """Writes the elements of a box."""
        done = 0
        for at, number in self.runs(starts, sizes):
            self.data[at * self.size : (at + number) * self.size] = data[done : done + number * self.size]
            self.written[at : at + number] = b"\1" * number
            done += number * self.size

    def values(self) -> "array[Any]":
        """Returns all elements."""
        found = array(CODES[self.spec.data_type])
        found.frombytes(bytes(self.data))
        return found


@dataclass
class TensorBlock:
    """Tensors that a reference names together."""

    name: str
    tensors: dict[str, Tensor]
    generation: int = 1


@dataclass
class Blocks(pb_grpc.TensorServiceServicer):
    """The blocks of this process.

    blocks.address = server.address
    refs = blocks.create("probe", [spec])
    blocks.fill("probe", "probe", data)
    """

    address: str = ""
    blocks: dict[str, TensorBlock] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What was wrong with chunks that were written, each in one clause."""

    def create(self, name: str, specs: Sequence[pb.TensorSpec]) -> list[pb.TensorRef]:
        """Makes a block, or another generation of it, and returns references to its tensors."""
        generation = self.blocks[name].generation + 1 if name in self.blocks else 1
        tensors, offset = {}, 0
        for spec in specs:
            count = math.prod(spec.shape)
            size = count * array(CODES[spec.data_type]).itemsize
            tensors[spec.name] = Tensor(spec, offset, bytearray(size), bytearray(count))
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        self.blocks[name] = TensorBlock(name, tensors, generation)
        uri = f"grpc:{self.address}/{name}"
        return [
            pb.TensorRef(plane_uri=uri, offset_bytes=tensor.offset, spec=tensor.spec, generation=generation)
            for tensor in tensors.values()
        ]

    def fill(self, name: str, tensor: str, data: bytes) -> None:
        """Writes a whole tensor from inside."""
        self.blocks[name].tensors[tensor].data[:] = data

    def _found(self, ref: pb.TensorRef) -> Tensor:
        name = ref.plane_uri.rpartition("/")[2]
        block = self.blocks.get(name)
        if block is None or ref.spec.name not in block.tensors:
            raise FailedPrecondition(f"there is no tensor '{ref.spec.name}' in the block '{name}'")
        if block.generation != ref.generation:
            raise FailedPrecondition(
                f"the block '{name}' has generation {block.generation}, the reference has {ref.generation}"
            )
        return block.tensors[ref.spec.name]

    async def ReadTensors(self, request: pb.ReadTensorsRequest, context: Any) -> AsyncIterator[pb.ReadTensorsResponse]:
        """Streams tensors."""
        for ref in request.tensors:
            tensor = self._found(ref)
            for starts, sizes in tensor.boxes():
                data = tensor.read(starts, sizes)
                digest = hashlib.sha256(data).hexdigest()
                chunk = pb.TensorChunk(tensor=ref, starts=starts, sizes=sizes, data=data, digest=digest)
                yield pb.ReadTensorsResponse(chunk=chunk)

    async def WriteTensors(self, request_iterator: AsyncIterator[Any], context: Any) -> pb.WriteTensorsResponse:
        """Writes chunks, and records what is wrong with them."""
        total = 0
        async for request in request_iterator:
            chunk = request.chunk
            tensor = self._found(chunk.tensor)
            self._check(chunk, tensor)
            tensor.write(chunk.starts, chunk.sizes, chunk.data)
            total += len(chunk.data)
        return pb.WriteTensorsResponse(size_bytes=total)

    def _check(self, chunk: pb.TensorChunk, tensor: Tensor) -> None:
        name, shape = tensor.spec.name, list(tensor.spec.shape)
        if hashlib.sha256(chunk.data).hexdigest() != chunk.digest:
            self.problems.append(f"digest: a chunk of '{name}' does not have its digest")
            raise DataLoss(f"a chunk of '{name}' does not have its digest", reason=BAD_DIGEST)
        box = list(zip(chunk.starts, chunk.sizes, shape, strict=False))
        fits = len(chunk.starts) == len(chunk.sizes) == len(shape) and all(s + n <= length for s, n, length in box)
        if not fits or len(chunk.data) != math.prod(chunk.sizes) * tensor.size or len(chunk.data) > LARGEST_CHUNK:
            found = f"a box from {list(chunk.starts)} of {list(chunk.sizes)} with {len(chunk.data)} bytes"
            self.problems.append(f"box: {found} does not fit '{name}' {shape}")
            raise InvalidArgument(f"{found} does not fit '{name}' {shape}")
