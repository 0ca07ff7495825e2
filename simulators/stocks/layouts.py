"""Computes observations of accounts: FinRL's published layouts, and podrace's own, scaled for a network.

`scaled`, [2 + 10 n], contains FinRL's state, transformed reversibly:

    0           log(account value / initial cash)
    1           cash / account value
    2 .. 1+n    value of the shares of each stock / account value
    2+n ..      the market's features (see simulators.stocks.indicators.market_features)

`finrl`, [1 + 10 n], is the state of FinRL's StockTradingEnv (Liu et al. 2020, arXiv 2011.09607), in money and shares:

    0           cash
    1 ..        close of each stock
    1+n ..      shares of each stock
    1+2n ..     the eight indicators in FinRL's order, indicator by indicator

`minute`, [3 + 10 n], is the state of FinRL's minute variant (Li et al. 2021, arXiv 2111.05188):

    0           max(cash, 10,000) 2^-12
    1, 2        h (1 / (1 + exp(-e x / h)) - 1/2) 2^-5 for the turbulence index x and its threshold h; whether x >= h
    3 ..        close of each stock 2^-6
    3+n ..      shares of each stock 2^-6
    3+2n ..     bars since the stock was last traded
    3+3n ..     seven indicators (those of finrl without cci_30) 2^-7, indicator by indicator

Without a turbulence threshold elements 1 and 2 are 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulators.stocks.bars import Array
from simulators.stocks.data import Prices
from simulators.stocks.indicators import NORMALIZATIONS, defined_indicators, market_features

MINUTE_INDICATORS = tuple(name for name in NORMALIZATIONS if name != "cci_30")
LEAST_CASH = 1e4
"""Lower bound of the cash shown by layout minute."""


class Accounts(NamedTuple):
    """State of the accounts when they are observed; float64 unless noted."""

    cash: Tensor
    """[N]."""
    shares: Tensor
    """[N, n]."""
    holdings: Tensor
    """[N, n]: value of the shares."""
    account_value: Tensor
    """[N]."""
    idle_bars: Tensor
    """[N, n] float32: bars since the stock was last traded."""
    initial_cash: float


@dataclass(frozen=True)
class Layout:
    """How an observation is built from the market's features, which are computed in advance, and the account."""

    size: Callable[[int], int]
    """Number of elements in an observation, given the number of stocks."""
    features: Callable[[Prices, Array], NDArray[np.float32]]
    """Computes the market's part of all rows, [rows, F], from the prices and the reference closes [n]."""
    observe: Callable[[Accounts, Sequence[Tensor], Tensor, Tensor], None]
    """Writes observations [N, size] float32 (last argument), given the market's features in blocks [rows, ...] float32
    (second) and the current row of each account, [N] int64 (third)."""
    blocks: Callable[[int], tuple[int, ...]]
    """Sizes of the blocks, given the number of stocks: parts of the features that are contiguous in an observation."""
    shows_idle_bars: bool = False
    shows_turbulence: bool = False
    """Whether the features start with two elements of turbulence, which `simulators.stocks.market` adds."""


def _observe_scaled(accounts: Accounts, features: Sequence[Tensor], day: Tensor, observation: Tensor) -> None:
    stocks = accounts.shares.shape[1]
    torch.log(accounts.account_value / accounts.initial_cash, out=observation[:, 0])
    torch.div(accounts.cash, accounts.account_value, out=observation[:, 1])
    torch.div(accounts.holdings, accounts.account_value.unsqueeze(1), out=observation[:, 2 : 2 + stocks])
    torch.index_select(features[0], 0, day, out=observation[:, 2 + stocks :])


def _finrl_features(prices: Prices, reference: Array) -> NDArray[np.float32]:
    return np.concatenate([prices.close, *defined_indicators(prices).values()], axis=1).astype(np.float32)


def _observe_finrl(accounts: Accounts, features: Sequence[Tensor], day: Tensor, observation: Tensor) -> None:
    stocks = accounts.shares.shape[1]
    observation[:, 0] = accounts.cash
    torch.index_select(features[0], 0, day, out=observation[:, 1 : 1 + stocks])
    observation[:, 1 + stocks : 1 + 2 * stocks] = accounts.shares
    torch.index_select(features[1], 0, day, out=observation[:, 1 + 2 * stocks :])


def _minute_features(prices: Prices, reference: Array) -> NDArray[np.float32]:
    indicators = defined_indicators(prices, MINUTE_INDICATORS).values()
    scaled = [prices.close * 2.0**-6, *(values * 2.0**-7 for values in indicators)]
    return np.concatenate(scaled, axis=1).astype(np.float32)


def _observe_minute(accounts: Accounts, features: Sequence[Tensor], day: Tensor, observation: Tensor) -> None:
    stocks = accounts.shares.shape[1]
    torch.mul(accounts.cash.clamp(min=LEAST_CASH), 2.0**-12, out=observation[:, 0])
    torch.index_select(features[0], 0, day, out=observation[:, 1 : 3 + stocks])
    torch.mul(accounts.shares, 2.0**-6, out=observation[:, 3 + stocks : 3 + 2 * stocks])
    observation[:, 3 + 2 * stocks : 3 + 3 * stocks] = accounts.idle_bars
    torch.index_select(features[1], 0, day, out=observation[:, 3 + 3 * stocks :])


def turbulence_features(index: Array, threshold: float) -> NDArray[np.float32]:
    """Computes layout minute's two elements, [rows, 2], from the turbulence index [rows] and its threshold (0: off)."""
    if threshold == 0:
        return np.zeros((len(index), 2), np.float32)
    term = threshold * (1 / (1 + np.exp(-np.e * index / threshold)) - 0.5) * 2.0**-5
    return np.stack([term, index >= threshold], axis=1).astype(np.float32)


LAYOUTS = {
    "scaled": Layout(lambda stocks: 2 + 10 * stocks, market_features, _observe_scaled, lambda stocks: (9 * stocks,)),
    "finrl": Layout(
        lambda stocks: 1 + 10 * stocks, _finrl_features, _observe_finrl, lambda stocks: (stocks, 8 * stocks)
    ),
    "minute": Layout(
        lambda stocks: 3 + 10 * stocks,
        _minute_features,
        _observe_minute,
        lambda stocks: (2 + stocks, 7 * stocks),
        shows_idle_bars=True,
        shows_turbulence=True,
    ),
}
"""Layouts by the value of the option `layout`."""
