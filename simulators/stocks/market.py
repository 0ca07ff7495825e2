"""Loads one split of the prices as tensors, and precomputes everything that does not depend on the account."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulators.stocks.data import Prices, load_prices, split_rows
from simulators.stocks.indicators import INDICATOR_HISTORY_DAYS, known_turbulence
from simulators.stocks.layouts import LAYOUTS, turbulence_features
from simulators.stocks.options import StockOptions

_KEPT_MARKETS = 4


@dataclass(frozen=True)
class Market:
    """The days (or shorter bars) of one split; row d of each tensor is what is known at the close of row d."""

    dates: tuple[str, ...]
    """ISO dates, ascending; all bars of a day have the same date."""
    tickers: tuple[str, ...]
    close: Tensor
    """[rows, n] float64."""
    features: Tensor
    """[rows, F] float32; see `simulators.stocks.layouts`."""
    turbulent: Tensor | None = None
    """[rows] bool: the turbulence index has reached the threshold; None when the threshold is 0."""
    traded: Tensor | None = None
    """[rows, n] bool: the bar had trades, so orders fill; None when all bars had."""
    member: Tensor | None = None
    """[rows, n] bool: the stock belongs to the pool and may be bought; None when all always do."""
    index_close: Tensor | None = None
    """[rows] float64, closes of an index fund; None when the data has none."""
    bars_a_day: int = 1
    """Rows of a full day."""

    @property
    def day_ends(self) -> NDArray[np.int64]:
        """[days] the last row of each day."""
        dates = np.array(self.dates)
        return np.flatnonzero(np.append(dates[1:] != dates[:-1], True))


def load_market(options: StockOptions, device: str = "cpu") -> Market:
    """Loads the split named by the options.

    Rows after the split are dropped before anything is computed, so nothing can leak from them. Rows before it only
    serve as history of the indicators. A pod opens the same few splits for one agent after the other, so the last few
    are cached; sharing them is safe because they are never written. A file that has changed is read again.

    Args:
        options: Options of the data and the split.
        device: Device of the tensors.

    Raises:
        InvalidArgument: The data or the split cannot be used; the message says why.
        Unimplemented: The file's format needs a package that is not installed.
    """
    return _load_market(options, device, _version(options.path))


def _version(path: str) -> tuple[int, ...]:
    """Returns a value that changes when the file is written or replaced; constant if `path` is not a file."""
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=_KEPT_MARKETS)
def _load_market(options: StockOptions, device: str, version: tuple[int, ...]) -> Market:
    prices = load_prices(options.path, options.tickers)
    guarded = options.turbulence_threshold > 0
    training_start, rows = split_rows(prices.dates, options, _history(prices, options), prices.bars_a_day)
    prices = prices.until(rows.stop)
    layout = LAYOUTS[options.layout]
    features = layout.features(prices, prices.close[training_start])[rows.start :]
    # Computing the index over a whole history is expensive, so it is done only if it is used.
    index = known_turbulence(prices, options.turbulence_days)[rows.start :] if guarded else np.zeros(len(rows))
    if layout.shows_turbulence:
        features = np.concatenate([turbulence_features(index, options.turbulence_threshold), features], axis=1)
    turbulent = index >= options.turbulence_threshold if guarded else None
    traded = None if prices.filled is None else ~prices.filled[rows.start :]

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=device)

    return Market(
        dates=tuple(np.datetime_as_string(prices.dates[rows.start :], unit="D").tolist()),
        tickers=prices.tickers,
        close=tensor(prices.close[rows.start :]),
        features=tensor(features),
        turbulent=None if turbulent is None else tensor(turbulent),
        traded=None if traded is None or traded.all() else tensor(traded),
        member=None if prices.member is None else tensor(prices.member[rows.start :]),
        index_close=None if prices.index_close is None else tensor(prices.index_close[rows.start :]),
        bars_a_day=prices.bars_a_day,
    )


def _history(prices: Prices, options: StockOptions) -> int:
    """Returns the number of rows before the first one in which all requested features are known."""
    if options.turbulence_threshold == 0:
        return INDICATOR_HISTORY_DAYS
    days = options.turbulence_days + 1
    if prices.bars_a_day == 1:
        return max(days, INDICATOR_HISTORY_DAYS)
    # The first index belongs to the day after these, and is known from the following morning.
    ends = prices.day_ends
    first = int(ends[days]) + 1 if days < len(ends) else len(prices.dates)
    return max(first, INDICATOR_HISTORY_DAYS)
