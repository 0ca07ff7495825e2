"""Owns how a tensor is cut into boxes that fit one message: ranges of indices, one for each dimension."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """The elements between some indices."""

    starts: tuple[int, ...]
    """First index in each dimension."""
    sizes: tuple[int, ...]
    """Length in each dimension."""

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        """All of a tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def index(self) -> tuple[slice, ...]:
        """What a tensor is indexed with to view the box."""
        return tuple(slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether it lies within a tensor of this shape."""
        return len(self.starts) == len(self.sizes) == len(shape) and all(
            start + size <= length for start, size, length in zip(self.starts, self.sizes, shape, strict=True)
        )


def split(box: Box, most_elements: int) -> Iterator[Box]:
    """Cuts a box into boxes of at most so many elements, in C order, as few dimensions deep as possible.

    Args:
        box: Any.
        most_elements: At least 1.
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
