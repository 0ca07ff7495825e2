"""Lays out tensors in a block of memory: a header of 64 bytes, then each tensor at a multiple of 64 bytes.

The header is eight little-endian 64-bit words: magic, layout version, generation, size of the block in bytes, four
zeros. Only the owner writes it. The generation is a safety check, not a lock: ownership passes only by messages.
"""

import mmap
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import LAYOUT_VERSION, element_type, size_bytes
from podrace.tensor_transport.pinned import PinnedMap

ALIGNMENT_BYTES = 64
HEADER_BYTES = 64
HEADER_WORDS = 8
MAGIC = int.from_bytes(b"podrace\0", "little")
MAGIC_WORD, LAYOUT_VERSION_WORD, GENERATION_WORD, SIZE_WORD = range(4)
FIRST_GENERATION = 1

REGION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")


def check_name(name: str) -> None:
    """Checks that a region name cannot leave its folder and has no dash, which separates it from the pod's prefix.

    Raises:
        InvalidArgument: The name has other characters than letters, digits, `_` and `.`.
    """
    if not REGION_NAME.fullmatch(name):
        raise InvalidArgument(f"region name {name!r} must consist of letters, digits, '_' and '.'")


def place(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Returns the offset of each tensor and the size of the whole block, header included, all in bytes.

    Raises:
        InvalidArgument: A tensor cannot be transferred, or two have the same name.
    """
    offsets = []
    names = set()
    end = HEADER_BYTES
    for spec in specs:
        if spec.name in names:
            raise InvalidArgument(f"tensor {spec.name!r} is listed twice")
        names.add(spec.name)
        offsets.append(end)
        end += -(-size_bytes(spec) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, end


def mapped(descriptor: int, size: int, flags: int = mmap.MAP_SHARED, *, pinned: bool = False) -> Tensor:
    """Maps memory as uint8 [size]; its pages are allocated when they are first accessed, or at once if it is pinned.

    The mapping exists as long as a tensor views it. It must not be closed explicitly: torch does not lock the buffer,
    so `mmap.close` would succeed and leave every view pointing at unmapped memory.
    """
    if not pinned:
        return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)
    memory = PinnedMap(descriptor, size, flags=flags)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    memory.register(tensor.data_ptr())
    return tensor


def header(memory: Tensor) -> Tensor:
    """Views the header of a block, int64 [8]."""
    return memory[:HEADER_BYTES].view(torch.int64)


def write_header(memory: Tensor) -> None:
    """Writes the header of a new block, with the first generation."""
    write_words(header(memory), memory.numel())


def write_words(words: Tensor, size: int) -> None:
    """Writes the header of a block of `size` bytes into int64 [8]."""
    words[SIZE_WORD] = size
    words[GENERATION_WORD] = FIRST_GENERATION
    words[LAYOUT_VERSION_WORD] = LAYOUT_VERSION
    words[MAGIC_WORD] = MAGIC


def check_header(memory: Tensor, plane_uri: str) -> None:
    """Checks that memory is a block of this layout.

    Raises:
        FailedPrecondition: Another program, or another version of podrace, wrote it.
    """
    words = header(memory).tolist()
    expected = {MAGIC_WORD: MAGIC, LAYOUT_VERSION_WORD: LAYOUT_VERSION, SIZE_WORD: memory.numel()}
    if any(words[word] != value for word, value in expected.items()):
        raise FailedPrecondition(
            f"{plane_uri} holds no tensors of layout version {LAYOUT_VERSION}; is it a file of podrace?"
        )


def check_distinct(refs: Sequence[TensorRef]) -> None:
    """Checks that the names of referenced tensors are distinct.

    Raises:
        InvalidArgument: A name occurs twice.
    """
    names = sorted(ref.spec.name for ref in refs)
    if len(set(names)) != len(names):
        raise InvalidArgument(f"the references name a tensor twice: {', '.join(names)}")


def open_tensors(
    refs: Sequence[TensorRef],
    memory_of: Callable[[str], Tensor],
    words_of: Callable[[str], Tensor] | None = None,
    *,
    first_byte: int = HEADER_BYTES,
) -> dict[str, Tensor]:
    """Views the referenced tensors in place.

    Args:
        refs: References with distinct names of tensors.
        memory_of: Returns the block of a plane URI, uint8 [size], with its header checked.
        words_of: Returns the header of a plane URI, int64 [8], if it is not at the start of the block.
        first_byte: Smallest offset of a tensor.

    Raises:
        FailedPrecondition: A block has another generation than a reference.
        InvalidArgument: A reference is malformed or exceeds its block.
    """
    check_distinct(refs)
    blocks = {plane_uri: memory_of(plane_uri) for plane_uri in {ref.plane_uri for ref in refs}}
    words = words_of or (lambda plane_uri: header(blocks[plane_uri]))
    generations = {plane_uri: int(words(plane_uri)[GENERATION_WORD]) for plane_uri in blocks}
    for ref in refs:
        _check_ref(ref, blocks[ref.plane_uri].numel(), generations[ref.plane_uri], first_byte)
    return {ref.spec.name: view(blocks[ref.plane_uri], ref.offset_bytes, ref.spec) for ref in refs}


def _check_ref(ref: TensorRef, block_bytes: int, generation: int, first_byte: int) -> None:
    if generation != ref.generation:
        raise FailedPrecondition(
            f"{ref.plane_uri} has generation {generation}, the reference to {ref.spec.name!r} has {ref.generation}:"
            " the owner has handed out the memory again"
        )
    begin, end = ref.offset_bytes, ref.offset_bytes + size_bytes(ref.spec)
    if begin < first_byte or begin % ALIGNMENT_BYTES or end > block_bytes:
        raise InvalidArgument(
            f"tensor {ref.spec.name!r}: bytes {begin} to {end} do not fit into {ref.plane_uri} of {block_bytes} bytes"
            f" (tensors start at multiples of {ALIGNMENT_BYTES}, at {first_byte} or later)"
        )


def view(memory: Tensor, offset: int, spec: TensorSpec) -> Tensor:
    """Views one tensor within a block, whose bounds must have been checked."""
    elements = memory[offset : offset + size_bytes(spec)].view(element_type(spec))
    return elements.view(tuple(spec.shape))
