"""Removes known share splits from prices, and detects unknown ones. Pure.

On the day of a split each share becomes `ratio` shares, and the price falls to 1 / ratio of its value. To a trader,
unadjusted prices of such a day look like a loss of half of its money overnight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podrace.errors import InvalidArgument
from simulators.stocks.bars import Array

RATIOS = (3 / 2, 2.0, 5 / 2, *map(float, range(3, 11)), 15.0, 20.0, 25.0, 30.0, 50.0)
"""Usual ratios of shares after to shares before; their inverses, for reverse splits, are usual too. 5 for 4 and 4 for 3
are left out, because quarterly results move prices as much."""
TOLERANCE = 0.04
"""Maximum distance of the log of an overnight move from that of a ratio: the market also moves on that night."""
MONEY_FACTOR = 1.5
"""Maximum growth of the money traded at a split. (At Apple's splits of 2000 and 2005 and Microsoft's of 2003 it fell to
0.67, 0.38 and 0.69 of its value; when Apple lost half of its value on 2000-09-29, it grew to 2.3.)"""
NEIGHBORS = 5
"""Days on either side whose medians of price and volume must confirm the split."""


@dataclass(frozen=True)
class Split:
    """A split of one symbol."""

    symbol: str
    date: str
    """ISO date of the first day on which the new shares are traded."""
    ratio: float
    """Shares after / shares before."""

    def __str__(self) -> str:
        kind = f"{self.ratio:g} for 1" if self.ratio > 1 else f"1 for {1 / self.ratio:g}"
        return f"{self.symbol} {self.date}: looks like an unadjusted split, {kind}"

    @property
    def name(self) -> str:
        """The value of --accept for this split."""
        return f"{self.symbol}:{self.date}"


def find_splits(
    tickers: Sequence[str], dates: NDArray[np.datetime64], opening: Array, closing: Array, volume: Array
) -> list[Split]:
    """Finds splits for which the prices are not adjusted yet.

    A split is an overnight move by a simple ratio after which the price stays at its new level and the money traded
    does not increase. When a price falls by half in a crash, or doubles with an offer, more money is traded. If the
    volume is unknown, the price alone decides.

    Args:
        tickers: n symbols.
        dates: [days] datetime64[D].
        opening: [days, n] first price of each day; NaN where there is none.
        closing: [days, n] last price of each day.
        volume: [days, n] shares traded.

    Returns:
        The splits, ordered by symbol and date.
    """
    found = []
    for column, ticker in enumerate(tickers):
        known = np.flatnonzero(np.isfinite(closing[:, column]))
        opened, closed, traded = (values[known, column] for values in (opening, closing, volume))
        for day in range(1, len(known)):
            ratio = _split_ratio(closed[day - 1] / opened[day])
            if ratio and _lasts(closed, traded, day, ratio):
                found.append(Split(ticker, str(dates[known[day]]), ratio))
    return found


def _split_ratio(fall: float) -> float:
    """Returns the ratio that explains a price `fall` times lower than on the day before; 0 if there is none."""
    distance = abs(np.log(fall))
    if distance < np.log(min(RATIOS)) - TOLERANCE:
        return 0.0
    nearest = min(RATIOS, key=lambda ratio: abs(np.log(ratio) - distance))
    if abs(np.log(nearest) - distance) > TOLERANCE:
        return 0.0
    return nearest if fall > 1 else 1 / nearest


def _lasts(closing: Array, volume: Array, day: int, ratio: float) -> bool:
    before, after = slice(max(0, day - NEIGHBORS), day), slice(day, day + NEIGHBORS)
    fall = np.median(closing[before]) / np.median(closing[after])
    traded_before, traded_after = np.median(volume[before]), np.median(volume[after])
    if not (traded_before > 0 and traded_after > 0):
        return _nearer_to(fall, ratio)
    # In money, i.e. volume in shares times price: it does not grow at a split.
    rush = traded_after / traded_before / ratio
    return _nearer_to(fall, ratio) and bool(rush < MONEY_FACTOR)


def _nearer_to(value: float, ratio: float) -> bool:
    """Whether a value is nearer to a ratio than to 1, in logarithms."""
    return bool(abs(np.log(value / ratio)) < abs(np.log(value)))


def adjust_for_split(
    split: Split, ticker_column: int, dates: NDArray[np.datetime64], prices: Sequence[Array], volume: Array
) -> tuple[list[Array], Array]:
    """Adjusts the prices and volumes before a split.

    Args:
        split: The split to remove.
        ticker_column: Column of its symbol.
        dates: [bars] datetime64[D] of each bar.
        prices: Arrays [bars, n].
        volume: [bars, n].

    Returns:
        Prices, divided by the ratio before its date, and volume, multiplied by it.

    Raises:
        InvalidArgument: The ratio is not a positive number.
    """
    if not 0 < split.ratio < np.inf:
        raise InvalidArgument(
            f"splits: {split.symbol} {split.date}: the ratio must be a positive number, not {split.ratio:g}"
        )
    factor = np.ones(volume.shape)
    factor[dates < np.datetime64(split.date), ticker_column] = split.ratio
    return [values / factor for values in prices], volume * factor
