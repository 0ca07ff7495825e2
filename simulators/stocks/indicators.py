"""What a trader may know at the close of a bar besides the close itself: every value depends on that bar and before.

Technical indicators come from stockstats; the turbulence index is our own.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import stockstats
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from podrace.errors import InvalidArgument
from simulators.stocks.bars import Array
from simulators.stocks.data import Prices

INDICATOR_HISTORY_DAYS = 59
"""Rows (days, or bars within days) needed before the first one used: the longest window, of close_60_sma, is full."""
TURBULENCE_WINDOW = 252
TURBULENCE_HISTORY_DAYS = TURBULENCE_WINDOW + 1
"""Days needed before the first one used: a full window of returns before that day's own."""
NEUTRAL = {"rsi_30": 50.0, "dx_30": 0.0, "cci_30": 0.0}
"""What an indicator is taken to be where it is undefined, because the price stood still for a while within a day."""

NORMALISATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "macd": lambda macd, close: 50 * macd / close,
    "boll_ub": lambda band, close: 10 * (band / close - 1),
    "boll_lb": lambda band, close: 10 * (band / close - 1),
    "rsi_30": lambda rsi, _: (rsi - 50) / 10,
    "cci_30": lambda cci, _: cci / 100,
    "dx_30": lambda dx, _: dx / 25,
    "close_30_sma": lambda average, close: 10 * (average / close - 1),
    "close_60_sma": lambda average, close: 10 * (average / close - 1),
}
"""FinRL's eight indicators in its order, each with its scaling for a network: (value, close) -> about unit size.
Amounts of money are taken relative to the close, so that a value means the same for every stock and year."""


def technical_indicators(prices: Prices, names: Iterable[str] = tuple(NORMALISATIONS)) -> dict[str, Array]:
    """The indicators of FinRL's state, as stockstats defines them.

    Args:
        prices: n stocks over some rows.
        names: Which, of the keys of `NORMALISATIONS`.

    Returns:
        Indicator name to its values, [rows, n]. The first `INDICATOR_HISTORY_DAYS` rows have windows that are not
        full yet.
    """
    frames = [
        stockstats.wrap(pd.DataFrame({"high": high, "low": low, "close": close}))
        for high, low, close in zip(prices.high.T, prices.low.T, prices.close.T, strict=True)
    ]
    return {name: np.stack([frame[name].to_numpy(np.float64) for frame in frames], axis=1) for name in names}


def defined_indicators(prices: Prices, names: Iterable[str] = tuple(NORMALISATIONS)) -> dict[str, Array]:
    """As `technical_indicators`, without values that no network can take.

    Within days, an indicator that is undefined because the price stood still has its `NEUTRAL` value: a thinly traded
    stock does that.

    Raises:
        InvalidArgument: An indicator is undefined in a row with full history: the stock has stood still for days.
    """
    indicators = technical_indicators(prices, names)
    for name, values in indicators.items():
        if prices.bars_a_day > 1 and name in NEUTRAL:
            values[~np.isfinite(values)] = NEUTRAL[name]
        _check_finite(prices, name, values)
    return indicators


def market_features(prices: Prices, reference: Array) -> NDArray[np.float32]:
    """The market's part of an observation, scaled for a network.

    Args:
        prices: n stocks over some rows.
        reference: [n] closes that the logarithmic price is relative to; of a day not later than any that is used.

    Returns:
        [rows, 9 n]: log(close / reference) of every stock, then indicator by indicator, scaled by `NORMALISATIONS`.

    Raises:
        InvalidArgument: An indicator is undefined in a row with full history: the stock has stood still.
    """
    features = [np.log(prices.close / reference)]
    for name, values in defined_indicators(prices).items():
        features.append(NORMALISATIONS[name](values, prices.close))
    return np.concatenate(features, axis=1).astype(np.float32)


def _check_finite(prices: Prices, name: str, values: Array) -> None:
    refused = np.argwhere(~np.isfinite(values[INDICATOR_HISTORY_DAYS:]))
    if len(refused):
        row, column = refused[0]
        where = f"{prices.tickers[column]} {prices.dates[row + INDICATOR_HISTORY_DAYS]}"
        raise InvalidArgument(f"{where}: {name} is undefined because the price stood still: leave this stock out")


def turbulence(close: Array, window: int = TURBULENCE_WINDOW) -> Array:
    """The financial turbulence index at each day's close.

    d_t = (r_t - m) S^-1 (r_t - m)', with r_t the returns of day t and m, S the mean and sample covariance of the
    returns of the days before it (Kritzman and Li 2010, "Skulls, Financial Turbulence, and Risk Management",
    equation 1). The pseudo-inverse stands in for a covariance without inverse, as in FinRL.

    Args:
        close: [days, n].
        window: Returns that a day's are held against.

    Returns:
        [days]; NaN in the first `window` + 1, where the window is not full.
    """
    index = np.full(len(close), np.nan)
    if len(close) <= window + 1:
        return index
    returns = close[1:] / close[:-1] - 1
    windows = sliding_window_view(returns[:-1], window, axis=0)  # [days, n, window]
    mean = windows.mean(axis=2)
    centred = windows - mean[:, :, None]
    covariance = centred @ centred.transpose(0, 2, 1) / (window - 1)
    surprise = returns[window:] - mean
    precision = np.linalg.pinv(covariance, hermitian=True)
    index[window + 1 :] = np.einsum("ti,tij,tj->t", surprise, precision, surprise)
    return index


def known_turbulence(prices: Prices, window: int = TURBULENCE_WINDOW) -> Array:
    """The turbulence index as far as it is known at the close of each row.

    At a daily close that is the index of the day itself. Within a day its close is yet to come, so that all of its bars
    know the index of the day before.

    Returns:
        [rows]; NaN while no window is full.
    """
    if prices.bars_a_day == 1:
        return turbulence(prices.close, window)
    ends = prices.day_ends
    of_day = turbulence(prices.close[ends], window)
    day = np.searchsorted(ends, np.arange(len(prices.dates)))
    return np.append(np.nan, of_day[:-1])[day]
