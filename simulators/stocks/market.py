"""One split of the prices as tensors, with everything about a day that does not depend on the account precomputed."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simulators.stocks.data import load_prices, split_rows
from simulators.stocks.indicators import (
    INDICATOR_HISTORY_DAYS,
    TURBULENCE_HISTORY_DAYS,
    market_features,
    turbulence,
)
from simulators.stocks.options import StockOptions


@dataclass(frozen=True)
class Market:
    """The days of one split; row d of each tensor is what is known at the close of day d."""

    dates: tuple[str, ...]
    """ISO dates, ascending."""
    tickers: tuple[str, ...]
    close: Tensor
    """[days, n] float64."""
    features: Tensor
    """[days, 9 n] float32; see `simulators.stocks.indicators.market_features`."""
    turbulent: Tensor | None = None
    """[days] bool: the turbulence index has reached the threshold; None when the guard is off."""


def load_market(options: StockOptions, device: str = "cpu") -> Market:
    """Loads the split that the options name.

    Days after the split are dropped before anything is computed, so that nothing can leak from them; days before it
    only serve as history of the indicators.

    Args:
        options: Data and split.
        device: Where the tensors live.

    Raises:
        InvalidArgument: The data or the split cannot be used; the line says why.
        Unimplemented: The file's format needs a package that is not installed.
    """
    prices = load_prices(options.path, options.tickers)
    guarded = options.turbulence_threshold > 0
    history_days = TURBULENCE_HISTORY_DAYS if guarded else INDICATOR_HISTORY_DAYS
    training_start, rows = split_rows(prices.dates, options, history_days)
    prices = prices.until(rows.stop)
    features = market_features(prices, reference=prices.close[training_start])
    turbulent = turbulence(prices.close)[rows.start :] >= options.turbulence_threshold if guarded else None
    return Market(
        dates=tuple(np.datetime_as_string(prices.dates[rows.start :], unit="D").tolist()),
        tickers=prices.tickers,
        close=torch.tensor(prices.close[rows.start :], device=device),
        features=torch.tensor(features[rows.start :], device=device),
        turbulent=None if turbulent is None else torch.tensor(turbulent, device=device),
    )
