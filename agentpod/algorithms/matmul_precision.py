"""Owns how matrices are multiplied during an update: how exact a specification wants it, and by which kernels.

torch calls it a precision, but on a CPU without matrix units `medium` rounds nothing: it only lets another library
multiply, which was measured twice as fast on wide layers (LOG.md). So `float32` means: as exact as float32, by the
fastest kernels that a test product shows to be so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

MATMUL_PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}
"""How torch calls what podrace.specification.catalog calls precisions."""
WIDE_UNITS = 128
"""Layers from this width on gain; narrower ones lose more by calling the other library than it saves."""
ROUNDING_ERROR = 4e-6
"""Largest error of a float32 test product, in units of its largest element; bfloat16 makes 1,000 times as much."""


@contextmanager
def matmul_precision(precision: str, hidden_sizes: tuple[int, ...], device: torch.device | str) -> Iterator[None]:
    """Multiplies as a specification says within the block, and as exactly as torch can elsewhere.

    Args:
        precision: Key of MATMUL_PRECISIONS.
        hidden_sizes: Of the networks that are trained.
        device: Where they are.
    """
    chosen = MATMUL_PRECISIONS[precision]
    if precision == "float32" and max(hidden_sizes, default=0) >= WIDE_UNITS and is_exact("medium", str(device)):
        chosen = "medium"
    torch.set_float32_matmul_precision(chosen)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@cache
def is_exact(matmul_precision: str, device: str) -> bool:
    """Whether products on this device are as good as float32 at a precision that allows less."""
    generator = torch.Generator().manual_seed(0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul_precision)
    try:
        return all(_error(size, device, generator) < ROUNDING_ERROR for size in (64, 256, 512))
    finally:
        torch.set_float32_matmul_precision(before)


def _error(size: int, device: str, generator: torch.Generator) -> float:
    left, right = (torch.randn(size, size, generator=generator) for _ in range(2))
    found = torch.mm(left.to(device), right.to(device)).cpu().double()
    wanted = torch.mm(left.double(), right.double())
    return float((found - wanted).abs().max() / wanted.abs().max())
