"""Owns how a block of memory is laid out: a header of 64 bytes, then tensors at multiples of 64. Knows no plane.

The header is eight little-endian 64-bit words: magic, layout version, generation, size of the block in bytes, four
zeros. Only the owner writes it. The generation is a safety check, not a lock: ownership passes by message alone.
"""

import mmap
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import LAYOUT_VERSION, element_type, size_bytes

ALIGNMENT_BYTES = 64
HEADER_BYTES = 64
HEADER_WORDS = 8
MAGIC = int.from_bytes(b"podrace\0", "little")
MAGIC_WORD, LAYOUT_VERSION_WORD, GENERATION_WORD, SIZE_WORD = range(4)
FIRST_GENERATION = 1

REGION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")


def check_name(name: str) -> None:
    """Refuses a region name that could leave its folder or, holding a dash, be taken for another pod's.

    Raises:
        InvalidArgument: The name is not made of letters, digits, `_` and `.`.
    """
    if not REGION_NAME.fullmatch(name):
        raise InvalidArgument(f"region name {name!r} must be made of letters, digits, '_' and '.'")


def place(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Returns the offset of each tensor and the size of the whole block, header included, all in bytes.

    Raises:
        InvalidArgument: A tensor cannot travel or two have the same name.
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


def mapped(descriptor: int, size: int, flags: int = mmap.MAP_SHARED) -> Tensor:
    """Maps memory as uint8 [size]; its pages come into being when they are first touched.

    The mapping lives exactly as long as a tensor that views it. It is never closed by hand: torch does not hold the
    buffer locked, so `mmap.close` would succeed and leave every view pointing at unmapped memory.
    """
    return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)


def header(memory: Tensor) -> Tensor:
    """Views the header of a block, int64 [8]."""
    return memory[:HEADER_BYTES].view(torch.int64)


def write_header(memory: Tensor) -> None:
    """Makes fresh memory a block of the first generation."""
    write_words(header(memory), memory.numel())


def write_words(words: Tensor, size: int) -> None:
    """Writes the header of a block of `size` bytes into int64 [8]."""
    words[SIZE_WORD] = size
    words[GENERATION_WORD] = FIRST_GENERATION
    words[LAYOUT_VERSION_WORD] = LAYOUT_VERSION
    words[MAGIC_WORD] = MAGIC


def check_header(memory: Tensor, plane_uri: str) -> None:
    """Refuses memory that is no block of this layout.

    Raises:
        FailedPrecondition: Another file has the name, or another version of podrace wrote it.
    """
    words = header(memory).tolist()
    expected = {MAGIC_WORD: MAGIC, LAYOUT_VERSION_WORD: LAYOUT_VERSION, SIZE_WORD: memory.numel()}
    if any(words[word] != value for word, value in expected.items()):
        raise FailedPrecondition(f"{plane_uri} holds no tensors of layout version {LAYOUT_VERSION}; is it our file?")


def check_distinct(refs: Sequence[TensorRef]) -> None:
    """Refuses references of which two would answer to one name.

    Raises:
        InvalidArgument: A name comes twice.
    """
    names = sorted(ref.spec.name for ref in refs)
    if len(set(names)) != len(names):
        raise InvalidArgument(f"the references name a tensor twice: {', '.join(names)}")


def open_tensors(
    refs: Sequence[TensorRef],
    memory_of: Callable[[str], Tensor],
    words_of: Callable[[str], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Views what some references name, in place.

    Args:
        refs: Distinct in the names of their tensors.
        memory_of: Gives the block of a plane URI, uint8 [size], header checked.
        words_of: Gives its header, int64 [8], where it does not lie at the beginning of the block.

    Raises:
        FailedPrecondition: A block has another generation than a reference states.
        InvalidArgument: A reference is malformed or reaches out of its block.
    """
    check_distinct(refs)
    blocks = {plane_uri: memory_of(plane_uri) for plane_uri in {ref.plane_uri for ref in refs}}
    words = words_of or (lambda plane_uri: header(blocks[plane_uri]))
    generations = {plane_uri: int(words(plane_uri)[GENERATION_WORD]) for plane_uri in blocks}
    for ref in refs:
        _check_ref(ref, blocks[ref.plane_uri].numel(), generations[ref.plane_uri])
    return {ref.spec.name: view(blocks[ref.plane_uri], ref.offset_bytes, ref.spec) for ref in refs}


def _check_ref(ref: TensorRef, block_bytes: int, generation: int) -> None:
    if generation != ref.generation:
        raise FailedPrecondition(
            f"{ref.plane_uri} is at generation {generation}, the reference to {ref.spec.name!r} is of {ref.generation}:"
            " the owner has handed the memory out anew"
        )
    begin, end = ref.offset_bytes, ref.offset_bytes + size_bytes(ref.spec)
    if begin < HEADER_BYTES or begin % ALIGNMENT_BYTES or end > block_bytes:
        raise InvalidArgument(
            f"tensor {ref.spec.name!r}: bytes {begin} to {end} do not fit {ref.plane_uri} of {block_bytes} bytes"
            f" (from {HEADER_BYTES} on, in multiples of {ALIGNMENT_BYTES})"
        )


def view(memory: Tensor, offset: int, spec: TensorSpec) -> Tensor:
    """Views one tensor within a block, whose bounds must have been checked."""
    elements = memory[offset : offset + size_bytes(spec)].view(element_type(spec))
    return elements.view(tuple(spec.shape))
