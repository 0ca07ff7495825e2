"""Computes what a trader knows at a bar's close besides the close: every value depends on that and earlier bars only.

Technical indicators come from stockstats; the turbulence index is computed here.
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
"""Rows (days or shorter bars) before the first usable one: the longest window, of close_60_sma, is then full."""
TURBULENCE_WINDOW = 252
"""Days of returns before a day whose turbulence is known."""
NEUTRAL = {"rsi_30": 50.0, "dx_30": 0.0, "cci_30": 0.0}
"""Values that replace an indicator where it is undefined because the intraday price did not move for a while."""

NORMALIZATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "macd": lambda macd, close: 50 * macd / close,
    "boll_ub": lambda band, close: 10 * (band / close - 1),
    "boll_lb": lambda band, close: 10 * (band / close - 1),
    "rsi_30": lambda rsi, _: (rsi - 50) / 10,
    "cci_30": lambda cci, _: cci / 100,
    "dx_30": lambda dx, _: dx / 25,
    "close_30_sma": lambda average, close: 10 * (average / close - 1),
    "close_60_sma": lambda average, close: 10 * (average / close - 1),
}
"""FinRL's eight indicators in its order, each with a scaling for networks: (value, close) -> about unit size.
Amounts of money are divided by the close, so that a value means the same for every stock and year."""


def technical_indicators(prices: Prices, names: Iterable[str] = tuple(NORMALIZATIONS)) -> dict[str, Array]:
    """Computes the indicators of FinRL's state, as stockstats defines them.

    Args:
        prices: n stocks over some rows.
        names: The indicators to compute, keys of `NORMALIZATIONS`.

    Returns:
        Indicator name to its values, [rows, n]. In the first `INDICATOR_HISTORY_DAYS` rows some windows are not full
        yet.
    """
    frames = [
        stockstats.wrap(pd.DataFrame({"high": high, "low": low, "close": close}))
        for high, low, close in zip(prices.high.T, prices.low.T, prices.close.T, strict=True)
    ]
    return {name: np.stack([frame[name].to_numpy(np.float64) for frame in frames], axis=1) for name in names}


def defined_indicators(prices: Prices, names: Iterable[str] = tuple(NORMALIZATIONS)) -> dict[str, Array]:
    """Computes `technical_indicators` without undefined values.

    In bars shorter than a day, an indicator that is undefined because the price did not move is replaced by its
    `NEUTRAL` value: this is normal for a thinly traded stock.

    Raises:
        InvalidArgument: An indicator is undefined in a row with full history: the price did not move for days.
    """
    indicators = technical_indicators(prices, names)
    for name, values in indicators.items():
        if prices.bars_a_day > 1 and name in NEUTRAL:
            values[~np.isfinite(values)] = NEUTRAL[name]
        _check_finite(prices, name, values)
    return indicators


def market_features(prices: Prices, reference: Array) -> NDArray[np.float32]:
    """Computes the market's part of an observation, scaled for a network.

    Args:
        prices: n stocks over some rows.
        reference: [n] closes by which log prices are divided; of a day not later than any row that is used.

    Returns:
        [rows, 9 n]: log(close / reference) of every stock, then each indicator of all stocks, scaled by
        `NORMALIZATIONS`.

    Raises:
        InvalidArgument: An indicator is undefined in a row with full history: the price did not move.
    """
    features = [np.log(prices.close / reference)]
    for name, values in defined_indicators(prices).items():
        features.append(NORMALIZATIONS[name](values, prices.close))
    return np.concatenate(features, axis=1).astype(np.float32)


def _check_finite(prices: Prices, name: str, values: Array) -> None:
    refused = np.argwhere(~np.isfinite(values[INDICATOR_HISTORY_DAYS:]))
    if len(refused):
        row, column = refused[0]
        where = f"{prices.tickers[column]} {prices.dates[row + INDICATOR_HISTORY_DAYS]}"
        raise InvalidArgument(f"{where}: {name} is undefined because the price did not move: leave this stock out")


def turbulence(close: Array, window: int = TURBULENCE_WINDOW) -> Array:
    """Computes the financial turbulence index at each day's close.

    d_t = (r_t - m) S^-1 (r_t - m)', with r_t the returns of day t, and m, S the mean and sample covariance of the
    returns of the days before it (Kritzman and Li 2010, "Skulls, Financial Turbulence, and Risk Management",
    equation 1). As in FinRL, S^-1 is the pseudo-inverse, which also exists for a singular covariance.

    Args:
        close: [days, n].
        window: Number of returns with which each day's are compared.

    Returns:
        [days]; NaN in the first `window` + 1, where the window is not full.
    """
    index = np.full(len(close), np.nan)
    if len(close) <= window + 1:
        return index
    returns = close[1:] / close[:-1] - 1
    windows = sliding_window_view(returns[:-1], window, axis=0)  # [days, n, window]
    mean = windows.mean(axis=2)
    centered = windows - mean[:, :, None]
    covariance = centered @ centered.transpose(0, 2, 1) / (window - 1)
    surprise = returns[window:] - mean
    precision = np.linalg.pinv(covariance, hermitian=True)
    index[window + 1 :] = np.einsum("ti,tij,tj->t", surprise, precision, surprise)
    return index


def known_turbulence(prices: Prices, window: int = TURBULENCE_WINDOW) -> Array:
    """Computes the turbulence index that is known at the close of each row.

    With daily rows this is the index of the day itself. With shorter bars the day's close is not known yet, so all bars
    of a day have the index of the day before.

    Returns:
        [rows]; NaN until a window is full.
    """
    if prices.bars_a_day == 1:
        return turbulence(prices.close, window)
    ends = prices.day_ends
    of_day = turbulence(prices.close[ends], window)
    day = np.searchsorted(ends, np.arange(len(prices.dates)))
    return np.append(np.nan, of_day[:-1])[day]
