"""What a trader may know at a day's close besides the close itself; every value depends on that day and earlier ones.

Technical indicators come from stockstats; the turbulence index is our own.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import stockstats
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from podrace.errors import InvalidArgument
from simulators.stocks.data import Array, Prices

INDICATOR_HISTORY_DAYS = 59
"""Days needed before the first one used: the longest window, of close_60_sma, is then full."""
TURBULENCE_WINDOW = 252
TURBULENCE_HISTORY_DAYS = TURBULENCE_WINDOW + 1
"""Days needed before the first one used: a full window of returns before that day's own."""

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


def technical_indicators(prices: Prices) -> dict[str, Array]:
    """The eight indicators of FinRL's state, as stockstats defines them.

    Args:
        prices: n stocks over some days.

    Returns:
        Indicator name to its values, [days, n]. The first `INDICATOR_HISTORY_DAYS` rows have windows that are not
        full yet.
    """
    frames = [
        stockstats.wrap(pd.DataFrame({"high": high, "low": low, "close": close}))
        for high, low, close in zip(prices.high.T, prices.low.T, prices.close.T, strict=True)
    ]
    return {name: np.stack([frame[name].to_numpy(np.float64) for frame in frames], axis=1) for name in NORMALISATIONS}


def market_features(prices: Prices, reference: Array) -> NDArray[np.float32]:
    """The market's part of an observation, scaled for a network.

    Args:
        prices: n stocks over some days.
        reference: [n] closes that the logarithmic price is relative to; of a day not later than any that is used.

    Returns:
        [days, 9 n]: log(close / reference) of every stock, then indicator by indicator, scaled by `NORMALISATIONS`.

    Raises:
        InvalidArgument: An indicator is undefined on a day with full history: the stock has stood still.
    """
    indicators = technical_indicators(prices)
    features = [np.log(prices.close / reference)]
    for name, normalise in NORMALISATIONS.items():
        _check_finite(prices, name, indicators[name])
        features.append(normalise(indicators[name], prices.close))
    return np.concatenate(features, axis=1).astype(np.float32)


def _check_finite(prices: Prices, name: str, values: Array) -> None:
    refused = np.argwhere(~np.isfinite(values[INDICATOR_HISTORY_DAYS:]))
    if len(refused):
        row, column = refused[0]
        where = f"{prices.tickers[column]} {prices.dates[row + INDICATOR_HISTORY_DAYS]}"
        raise InvalidArgument(f"{where}: {name} is undefined because the price stood still: leave this stock out")


def turbulence(close: Array) -> Array:
    """The financial turbulence index at each day's close.

    d_t = (r_t - m) S^-1 (r_t - m)', with r_t the returns of day t and m, S the mean and sample covariance of the
    returns of the 252 days before it (Kritzman and Li 2010, "Skulls, Financial Turbulence, and Risk Management",
    equation 1). The pseudo-inverse stands in for a covariance without inverse, as in FinRL.

    Args:
        close: [days, n].

    Returns:
        [days]; NaN in the first `TURBULENCE_HISTORY_DAYS`, where the window is not full.
    """
    index = np.full(len(close), np.nan)
    if len(close) <= TURBULENCE_HISTORY_DAYS:
        return index
    returns = close[1:] / close[:-1] - 1
    windows = sliding_window_view(returns[:-1], TURBULENCE_WINDOW, axis=0)  # [days, n, window]
    mean = windows.mean(axis=2)
    centred = windows - mean[:, :, None]
    covariance = centred @ centred.transpose(0, 2, 1) / (TURBULENCE_WINDOW - 1)
    surprise = returns[TURBULENCE_WINDOW:] - mean
    precision = np.linalg.pinv(covariance, hermitian=True)
    index[TURBULENCE_HISTORY_DAYS:] = np.einsum("ti,tij,tj->t", surprise, precision, surprise)
    return index
