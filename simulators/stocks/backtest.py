"""What an account's values say about a trader: the papers' measures, the baseline, and what the trader did."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulators.stocks.bars import Array

TRADING_DAYS_A_YEAR = 252


def performance(account_value: Array) -> dict[str, float]:
    """The measures of the FinRL-Podracer paper (arXiv 2111.05188), in the convention its index row reproduces.

    With p_1..p_n the account's value at each day's close and r the n - 1 daily returns:

        cumulative_return    p_n / p_1 - 1
        annual_return        (1 + cumulative_return)^(252 / n) - 1, n being the number of rows, not of returns
        annual_volatility    std(r, ddof=1) * sqrt(252)
        sharpe_ratio         mean(r) / std(r, ddof=1) * sqrt(252), the risk-free rate being 0
        maximum_drawdown     min(p / running maximum of p - 1), at most 0
        calmar_ratio         annual_return / |maximum_drawdown|

    A ratio whose denominator is 0 (an account that never moves, or never falls) is 0.

    Args:
        account_value: [n] positive, n at least 3.
    """
    returns = account_value[1:] / account_value[:-1] - 1
    deviation = float(returns.std(ddof=1))
    cumulative_return = float(account_value[-1] / account_value[0]) - 1
    annual_return = (1 + cumulative_return) ** (TRADING_DAYS_A_YEAR / len(account_value)) - 1
    maximum_drawdown = float((account_value / np.maximum.accumulate(account_value)).min()) - 1
    return {
        "cumulative_return": cumulative_return,
        "annual_return": annual_return,
        "annual_volatility": deviation * TRADING_DAYS_A_YEAR**0.5,
        "sharpe_ratio": _ratio(float(returns.mean()), deviation) * TRADING_DAYS_A_YEAR**0.5,
        "maximum_drawdown": maximum_drawdown,
        "calmar_ratio": _ratio(annual_return, -maximum_drawdown),
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def equal_weight(close: Array, initial_cash: float, cost: float) -> Array:
    """Buy and hold of the equal-weight pool: as much money in every stock at the first close, never traded again.

    It pays the same fee as a trader. Shares are fractional, so that the baseline does not depend on how large a share
    happens to be. As with a trader's account, the first value is the cash before the purchase.

    Args:
        close: [days, n].
        initial_cash: Money to invest.
        cost: Fee as a fraction of the traded value.

    Returns:
        [days] value of the account at each close.
    """
    growth = (close / close[0]).mean(axis=1)
    account_value: Array = initial_cash / (1 + cost) * growth
    account_value[0] = initial_cash
    return account_value


@dataclass(frozen=True)
class TradingRecord:
    """What an account was in every row of a split, and hence what it did."""

    account_value: Array
    """[rows]."""
    shares: Array
    """[rows, n] held before the orders of the row."""
    close: Array
    """[rows, n]."""
    cost: float
    """Fee as a fraction of the traded value."""

    @cached_property
    def traded_shares(self) -> Array:
        """[rows, n] bought or, negative, sold at the close of each row; nothing in the last one."""
        return np.diff(self.shares, axis=0, append=self.shares[-1:])

    @cached_property
    def traded_value(self) -> Array:
        """[rows, n] in money, not negative."""
        value: Array = np.abs(self.traded_shares) * self.close
        return value

    @property
    def costs(self) -> Array:
        """[rows, n] fees in money."""
        return self.cost * self.traded_value

    @property
    def exposure(self) -> Array:
        """[rows] value of the shares / account value."""
        exposure: Array = (self.shares * self.close).sum(1) / self.account_value
        return exposure

    def turnover(self, ends: NDArray[np.int64]) -> Array:
        """Value traded on each day / account value at its close, [days], of the last row of each day [days]."""
        traded = np.add.reduceat(self.traded_value.sum(1), np.append(0, ends[:-1] + 1))
        turnover: Array = traded / self.account_value[ends]
        return turnover

    def attribution(self) -> Array:
        """What each stock has brought up to each row, [rows, n] in money, fees included.

        The stocks' contributions add up to what the account has gained.
        """
        gains = self.shares[1:] * np.diff(self.close, axis=0) - self.costs[:-1]
        return np.concatenate([np.zeros_like(gains[:1]), np.cumsum(gains, axis=0)])
