"""Loads one split of the prices as tensors, and precomputes everything that does not depend on the account."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.files import version_of
from simulators.stocks.bars import Array
from simulators.stocks.data import Prices, check_length, load_prices, split_boundaries, split_rows
from simulators.stocks.folds import LEAST_ROWS, Block, place_folds
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
    blocks: tuple[range, ...] = ()
    """Rows of the periods of which an episode is a part; empty: all rows are one period."""
    folds: tuple[int, ...] = ()
    """Number of the validation fold of each block, from 1; empty when the blocks are not folds."""

    @property
    def day_ends(self) -> NDArray[np.int64]:
        """[days] the last row of each day."""
        dates = np.array(self.dates)
        return np.flatnonzero(np.append(dates[1:] != dates[:-1], True))


def load_market(options: StockOptions, device: str = "cpu", allowed: Allowed = EVERYTHING) -> Market:
    """Loads the split named by the options.

    Rows after the split are dropped before anything is computed, so nothing can leak from them. Rows before it only
    serve as history of the indicators. With folds, each block of rows is computed from its own rows and those purged
    before it, so nothing of a fold can leak into training or the reverse. A pod opens the same few splits for one agent
    after the other, so the last few are cached; sharing them is safe because they are never written. A file that has
    changed is read again.

    Args:
        options: Options of the data and the split.
        device: Device of the tensors.
        allowed: What may be read.

    Raises:
        InvalidArgument: The data or the split cannot be used; the message says why.
        Unimplemented: The file's format needs a package that is not installed.
    """
    return _load_market(options, device, allowed, version_of(options.path, allowed))


@functools.lru_cache(maxsize=_KEPT_MARKETS)
def _load_market(options: StockOptions, device: str, allowed: Allowed, version: tuple[int, ...]) -> Market:
    prices = load_prices(options.path, options.tickers, allowed)
    training_start, blocks = _blocks(prices, options)
    # With folds, the reference must be traded neither in training nor in a fold.
    reference = prices.close[training_start - 1 if options.folds else training_start]
    parts = [prices.between(block.known, block.rows.stop) for block in blocks]
    features = [_features(part, reference, options) for part in parts]
    lengths = [len(block.rows) for block in blocks]
    rows = np.concatenate([np.array(block.rows) for block in blocks])
    traded = None if prices.filled is None else ~prices.filled[rows]
    turbulent = [index[-length:] for (_, index), length in zip(features, lengths, strict=True)]

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=device)

    ends = np.cumsum(lengths).tolist()
    numbers = (options.fold,) if options.fold else tuple(range(1, options.folds + 1))
    return Market(
        dates=tuple(np.datetime_as_string(prices.dates[rows], unit="D").tolist()),
        tickers=prices.tickers,
        close=tensor(prices.close[rows]),
        features=tensor(
            np.concatenate([values[-length:] for (values, _), length in zip(features, lengths, strict=True)])
        ),
        turbulent=tensor(np.concatenate(turbulent) >= options.turbulence_threshold) if _guarded(options) else None,
        traded=None if traded is None or traded.all() else tensor(traded),
        member=None if prices.member is None else tensor(prices.member[rows]),
        index_close=None if prices.index_close is None else tensor(prices.index_close[rows]),
        bars_a_day=prices.bars_a_day,
        blocks=tuple(range(end - length, end) for end, length in zip(ends, lengths, strict=True)),
        folds=numbers if options.split == "validation" and options.folds else (),
    )


def _blocks(prices: Prices, options: StockOptions) -> tuple[int, tuple[Block, ...]]:
    """Returns the first row of training, and the blocks of the split."""
    history, bars_a_day = _history(prices, options), prices.bars_a_day
    if not options.folds or options.split == "backtest":
        training_start, rows = split_rows(prices.dates, options, history, bars_a_day)
        return training_start, (Block(rows),)
    start, validation_start, stop, _ = split_boundaries(prices.dates, options, history, bars_a_day)
    day_starts = np.append(0, prices.day_ends[:-1] + 1)

    def first_known(row: int) -> int:
        return _first_known(row, day_starts, options, bars_a_day)

    least_rows = (options.split == "train" and options.episode_days * bars_a_day) or LEAST_ROWS
    folds = place_folds(
        prices.dates, range(start, stop), validation_start, options.folds, first_known, options.embargo_bars, least_rows
    )
    if options.split == "train":
        return start, folds.training
    for number, block in enumerate(folds.validation, start=1):
        check_length(f"validation fold {number} of {options.folds}", block.rows, prices.dates, options, bars_a_day)
    return start, folds.validation[options.fold - 1 :][:1] if options.fold else folds.validation


def _guarded(options: StockOptions) -> bool:
    return options.turbulence_threshold > 0


def _features(prices: Prices, reference: Array, options: StockOptions) -> tuple[NDArray[np.float32], Array]:
    """Returns the features [rows, F] of consecutive rows, and their turbulence index [rows], 0 if it is not used."""
    layout = LAYOUTS[options.layout]
    features = layout.features(prices, reference)
    # Computing the index over a whole history is expensive, so it is done only if it is used.
    index = known_turbulence(prices, options.turbulence_days) if _guarded(options) else np.zeros(len(prices.dates))
    if layout.shows_turbulence:
        features = np.concatenate([turbulence_features(index, options.turbulence_threshold), features], axis=1)
    return features, index


def _first_known(row: int, day_starts: NDArray[np.int64], options: StockOptions, bars_a_day: int) -> int:
    """Returns the first row that the features of a row depend on, where their windows are finite; at least 0."""
    known = row - INDICATOR_HISTORY_DAYS
    if _guarded(options):
        # The index of a day compares it with the `turbulence_days` before it, whose first return needs one day more.
        # With bars shorter than a day, all of this is one day earlier.
        days = options.turbulence_days + (1 if bars_a_day == 1 else 2)
        day = int(np.searchsorted(day_starts, row, side="right")) - 1
        known = min(known, int(day_starts[max(0, day - days)]))
    return max(0, known)


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
