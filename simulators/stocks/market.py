"""One split of the prices as tensors, with everything about a row that does not depend on the account precomputed."""

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
    """The days (or bars within days) of one split; row d of each tensor is what is known at the close of row d."""

    dates: tuple[str, ...]
    """ISO dates, ascending; bars of one day share theirs."""
    tickers: tuple[str, ...]
    close: Tensor
    """[rows, n] float64."""
    features: Tensor
    """[rows, F] float32; see `simulators.stocks.layouts`."""
    turbulent: Tensor | None = None
    """[rows] bool: the turbulence index has reached the threshold; None when the guard is off."""
    traded: Tensor | None = None
    """[rows, n] bool: there were trades in the bar, so that an order can fill; None when there always were."""
    member: Tensor | None = None
    """[rows, n] bool: the stock belongs to the pool, so that it may be bought; None when all do."""
    index_close: Tensor | None = None
    """[rows] float64 of an index fund; None when the data has none."""
    bars_a_day: int = 1
    """Rows of a full day."""

    @property
    def day_ends(self) -> NDArray[np.int64]:
        """[days] the last row of each day."""
        dates = np.array(self.dates)
        return np.flatnonzero(np.append(dates[1:] != dates[:-1], True))


def load_market(options: StockOptions, device: str = "cpu") -> Market:
    """Loads the split that the options name.

    Rows after the split are dropped before anything is computed, so that nothing can leak from them; rows before it
    only serve as history of the indicators. A pod opens the same few splits for one agent after the other: the last
    ones are kept, and shared, because nobody writes into them. A file that was written since is read again.

    Args:
        options: Data and split.
        device: Where the tensors live.

    Raises:
        InvalidArgument: The data or the split cannot be used; the line says why.
        Unimplemented: The file's format needs a package that is not installed.
    """
    return _load_market(options, device, _version(options.path))


def _version(path: str) -> tuple[int, ...]:
    """Differs when the file was written or replaced; the same for prices that are no file."""
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
    # The index of a whole history is not cheap: only when somebody asks for it.
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
    """Rows before the first one on which everything that is asked for is known."""
    if options.turbulence_threshold == 0:
        return INDICATOR_HISTORY_DAYS
    days = options.turbulence_days + 1
    if prices.bars_a_day == 1:
        return max(days, INDICATOR_HISTORY_DAYS)
    # The first index belongs to the day after these, and is known from the next morning on.
    ends = prices.day_ends
    first = int(ends[days]) + 1 if days < len(ends) else len(prices.dates)
    return max(first, INDICATOR_HISTORY_DAYS)
