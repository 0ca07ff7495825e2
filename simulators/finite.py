"""Finds numbers that are not finite, for next to nothing where all of them are."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def all_finite(numbers: NDArray[Any]) -> bool:
    """Whether all of [N] are finite: their sum of squares is, unless they are beyond 1e19 (or 1e154 in float64)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(numbers.dot(numbers)):
            return True
    return bool(np.isfinite(numbers).all())
