"""Turns what an environment returns into the numbers that a policy receives, and refuses what it cannot act on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.errors import InvalidArgument

REAL_NUMBERS = "biuf"
"""Kinds of numpy types whose elements are real numbers: booleans, integers and floating-point numbers."""


def as_numbers(observation: Any, kind: np.dtype[Any]) -> NDArray[Any]:
    """Returns an observation as an array of a type.

    Args:
        observation: An array, or what numpy makes one of.
        kind: float32, or uint8 of an image.

    Raises:
        InvalidArgument: It is not an array of real numbers, or has numbers that the type does not have.
    """
    try:
        found = np.asarray(observation)
    except ValueError:
        raise InvalidArgument("an observation whose parts have different shapes: expected one array") from None
    if found.dtype.kind not in REAL_NUMBERS:
        raise InvalidArgument(f"an observation of the type {found.dtype}: expected real numbers")
    if kind == np.uint8 and found.dtype != np.uint8:
        wrong = found.dtype.kind == "f" or ((found < 0) | (found > 255)).any()
        if wrong:
            raise InvalidArgument(f"an observation of the type {found.dtype}: expected bytes from 0 to 255 (uint8)")
    with np.errstate(over="ignore"):  # too large numbers become infinite, which `check_finite` refuses
        return found.astype(kind, copy=False)


def as_rows(observation: Any, choices: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Returns an observation as `as_numbers` does, and one-hot rows of whole numbers that stand for choices.

    Args:
        observation: A whole number, or an array [N] of them, of an environment that observes one of several choices;
            or an array.
        choices: Number of choices; 0: the environment observes an array.
        kind: float32, or uint8 of an image.

    Raises:
        InvalidArgument: As `as_numbers`; or a number is outside of the choices.
    """
    found = np.asarray(observation) if choices else None
    if found is None or found.dtype.kind not in "iu" or found.ndim > 1:
        return as_numbers(observation, kind)
    if ((found < 0) | (found >= choices)).any():
        raise InvalidArgument(f"an observation {found.tolist()}: expected numbers from 0 to {choices - 1}")
    rows: NDArray[Any] = np.eye(choices, dtype=kind)[found]
    return rows


def check_finite(name: str, values: NDArray[Any]) -> None:
    """Refuses numbers that are not finite: a policy would answer with an action that means nothing.

    Raises:
        InvalidArgument: A number is NaN or infinite.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))[0])
        raise InvalidArgument(f"{name}: row {row} has a number that is not finite")
