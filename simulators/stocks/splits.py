"""Share splits: those that are known are taken out of the prices, those that nobody mentioned are found. Pure.

On the day of a split each share becomes `ratio` shares, and the price falls to 1 / ratio of what it was. A trader that
is shown such a day learns that it lost half of its money overnight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podrace.errors import InvalidArgument
from simulators.stocks.bars import Array

RATIOS = (3 / 2, 2.0, 5 / 2, *map(float, range(3, 11)), 15.0, 20.0, 25.0, 30.0, 50.0)
"""Of shares after to shares before that are usual; so are their inverses, reverse splits. 5 for 4 and 4 for 3 are left
out: results of a quarter move prices as far."""
TOLERANCE = 0.04
"""How far the logarithm of an overnight move may be from that of a ratio: the market moves on that night as well."""
MONEY_FACTOR = 1.5
"""Up to which the money traded may grow with a split. (With Apple's in 2000 and 2005 and Microsoft's in 2003 it fell to
0.67, 0.38 and 0.69 of what it was; when Apple fell by half on 2000-09-29, it grew to 2.3.)"""
NEIGHBOURS = 5
"""Days on either side whose medians of price and volume must tell the same."""


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
        """What --accept takes."""
        return f"{self.symbol}:{self.date}"


def find_splits(
    tickers: Sequence[str], dates: NDArray[np.datetime64], opening: Array, closing: Array, volume: Array
) -> list[Split]:
    """Finds splits that are still in the prices.

    A split is an overnight move to a simple ratio of the price, after which the price stays there and no more money is
    traded than before: a price that falls by half in a crash, or doubles with an offer, comes with a rush. Where no
    volume is known, the price alone decides.

    Args:
        tickers: n names.
        dates: [days] datetime64[D].
        opening: [days, n] first price of each day; NaN where there is none.
        closing: [days, n] last price of each day.
        volume: [days, n] shares traded.

    Returns:
        By symbol and date.
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
    """The ratio that explains a price `fall` times lower than the evening before; 0 if none does."""
    distance = abs(np.log(fall))
    if distance < np.log(min(RATIOS)) - TOLERANCE:
        return 0.0
    nearest = min(RATIOS, key=lambda ratio: abs(np.log(ratio) - distance))
    if abs(np.log(nearest) - distance) > TOLERANCE:
        return 0.0
    return nearest if fall > 1 else 1 / nearest


def _lasts(closing: Array, volume: Array, day: int, ratio: float) -> bool:
    before, after = slice(max(0, day - NEIGHBOURS), day), slice(day, day + NEIGHBOURS)
    fall = np.median(closing[before]) / np.median(closing[after])
    traded_before, traded_after = np.median(volume[before]), np.median(volume[after])
    if not (traded_before > 0 and traded_after > 0):
        return _nearer_to(fall, ratio)
    # In money, that is in shares of either side: a split brings no rush.
    rush = traded_after / traded_before / ratio
    return _nearer_to(fall, ratio) and bool(rush < MONEY_FACTOR)


def _nearer_to(value: float, ratio: float) -> bool:
    """Whether a value is nearer to a ratio than to 1, in logarithms."""
    return bool(abs(np.log(value / ratio)) < abs(np.log(value)))


def adjust_for_split(
    split: Split, ticker_column: int, dates: NDArray[np.datetime64], prices: Sequence[Array], volume: Array
) -> tuple[list[Array], Array]:
    """Takes one split out of what lies before it.

    Args:
        split: To take out.
        ticker_column: Column of its symbol.
        dates: [bars] datetime64[D] of each bar.
        prices: Arrays [bars, n].
        volume: [bars, n].

    Returns:
        Prices, divided by the ratio before its date, and volume, multiplied by it.

    Raises:
        InvalidArgument: The ratio is no positive number.
    """
    if not 0 < split.ratio < np.inf:
        raise InvalidArgument(f"splits: {split.symbol} {split.date}: the ratio is {split.ratio:g}")
    factor = np.ones(volume.shape)
    factor[dates < np.datetime64(split.date), ticker_column] = split.ratio
    return [values / factor for values in prices], volume * factor
