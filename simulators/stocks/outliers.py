"""Finds and repairs bad ticks: implausible prices that jump and return within the next bar. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.stocks.bars import Array, Flags

NORMAL_MEDIAN = 1.4826
"""Standard deviation of a normal variable / median of its absolute value."""
REVERSION = 0.5
"""Fraction of the jump that may remain after the next bar."""


@dataclass(frozen=True)
class BadTick:
    """One suspicious bar."""

    row: int
    column: int
    deviations: float
    """Size of the jump in robust deviations of the symbol's returns."""
    jump: float
    """The return of this bar; the next bar reverts it."""


def find_bad_ticks(close: Array, filled: Flags, deviations: float) -> list[BadTick]:
    """Finds closes that jump and return within the next bar.

    A jump is a return beyond `deviations` robust deviations (1.4826 x the median of absolute returns that are not 0) of
    its symbol; it reverts if the next return is as large, has the other sign, and leaves less than half of it.

    Args:
        close: [bars, n] positive.
        filled: [bars, n] bars without trades; they are skipped.
        deviations: Size from which a jump is suspicious.

    Returns:
        The bad ticks, ordered by symbol and bar.
    """
    found = []
    for column in range(close.shape[1]):
        rows = np.flatnonzero(~filled[:, column])
        returns = np.diff(np.log(close[rows, column]))
        scale = robust_deviation(returns)
        if not scale:
            continue
        first, second = returns[:-1], returns[1:]
        large = (np.abs(first) > deviations * scale) & (np.abs(second) > deviations * scale)
        reverts = np.abs(first + second) < REVERSION * np.abs(first)
        found += [
            BadTick(int(rows[place + 1]), column, float(abs(first[place]) / scale), float(np.expm1(first[place])))
            for place in np.flatnonzero(large & reverts)
        ]
    return found


def robust_deviation(returns: Array) -> float:
    """Estimates the standard deviation from the median, robust to outliers; 0 if all returns are 0."""
    moved = np.abs(returns[returns != 0])
    return NORMAL_MEDIAN * float(np.median(moved)) if len(moved) else 0.0


def repair(ticks: list[BadTick], prices: list[Array], volume: Array) -> tuple[list[Array], Array, NDArray[np.bool_]]:
    """Replaces every price of a bad tick by the close before it.

    Args:
        ticks: Bad ticks found in the last array of `prices`.
        prices: Arrays [bars, n]; the last one holds the closes.
        volume: [bars, n].

    Returns:
        The prices, the volume (0 where repaired), and which bars were repaired, [bars, n].
    """
    prices, volume, repaired = [values.copy() for values in prices], volume.copy(), np.zeros(volume.shape, bool)
    for tick in ticks:
        for values in prices:
            values[tick.row, tick.column] = prices[-1][tick.row - 1, tick.column]
        volume[tick.row, tick.column] = 0
        repaired[tick.row, tick.column] = True
    return prices, volume, repaired
