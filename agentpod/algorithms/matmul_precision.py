"""Selects the precision and the kernels of matrix multiplications, and the precision of convolutions, in an update.

torch calls its setting a precision. On a CPU without matrix units, however, `medium` rounds nothing and only selects
another library, which was measured to be twice as fast on wide layers (LOG.md). Here `float32` therefore means: as
exact as float32, by the fastest kernels that are exact for a test product.

Convolutions on a GPU have a separate setting. By default torch rounds their inputs to TF32, whatever the precision of
matrix multiplications is; agentpod.current_device turns that off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

MATMUL_PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}
"""torch's names for the precisions of podrace.specification.catalog."""
WIDE_UNITS = 128
"""Layers at least this wide gain from the other library; for narrower ones calling it costs more than it saves."""
ROUNDING_ERROR = 4e-6
"""Maximum error of a float32 test product, relative to its largest element; that of bfloat16 is 1,000 times larger."""


@contextmanager
def matmul_precision(precision: str, hidden_sizes: tuple[int, ...], device: torch.device | str) -> Iterator[None]:
    """Multiplies and convolves with the given precision within the block; afterwards in float32.

    Args:
        precision: Key of MATMUL_PRECISIONS.
        hidden_sizes: Of the trained networks.
        device: Of the trained networks.
    """
    chosen = MATMUL_PRECISIONS[precision]
    if precision == "float32" and max(hidden_sizes, default=0) >= WIDE_UNITS and is_exact("medium", str(device)):
        chosen = "medium"
    torch.set_float32_matmul_precision(chosen)
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False


@cache
def is_exact(matmul_precision: str, device: str) -> bool:
    """Whether matrix products on this device are as exact as float32 although torch's setting allows less."""
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
