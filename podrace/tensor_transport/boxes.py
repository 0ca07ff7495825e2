"""Cuts tensors into boxes that fit one message. A box is a range of indices in each dimension."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A range of indices in each dimension of a tensor."""

    starts: tuple[int, ...]
    """First index in each dimension."""
    sizes: tuple[int, ...]
    """Length in each dimension."""

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        """The box of a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def index(self) -> tuple[slice, ...]:
        """Slices that index a tensor to view the box."""
        return tuple(slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the box lies within a tensor of this shape."""
        return len(self.starts) == len(self.sizes) == len(shape) and all(
            start + size <= length for start, size, length in zip(self.starts, self.sizes, shape, strict=True)
        )


def split(box: Box, most_elements: int) -> Iterator[Box]:
    """Cuts a box into smaller boxes in C order, along as few dimensions as possible.

    Args:
        box: The box to cut.
        most_elements: Largest number of elements of each box, at least 1.
    """
    if box.elements <= most_elements:
        if box.elements:
            yield box
        return
    dimension = next(index for index, size in enumerate(box.sizes) if size > 1)
    length = max(1, most_elements // math.prod(box.sizes[dimension + 1 :]))
    for start in range(0, box.sizes[dimension], length):
        size = min(length, box.sizes[dimension] - start)
        piece = Box(_with(box.starts, dimension, box.starts[dimension] + start), _with(box.sizes, dimension, size))
        yield from split(piece, most_elements)


def _with(numbers: tuple[int, ...], position: int, number: int) -> tuple[int, ...]:
    return (*numbers[:position], number, *numbers[position + 1 :])
