"""Computes measures of a trader from the values of its account: the papers' measures, a baseline, and its trades."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulators.stocks.bars import Array, Flags

TRADING_DAYS_A_YEAR = 252


def performance(account_value: Array) -> dict[str, float]:
    """Computes the measures of the FinRL-Podracer paper (arXiv 2111.05188), by the convention that its index row fits.

    With p_1..p_n the account value at each day's close and r the n - 1 daily returns:

        cumulative_return    p_n / p_1 - 1
        annual_return        (1 + cumulative_return)^(252 / n) - 1, where n is the number of rows, not of returns
        annual_volatility    std(r, ddof=1) * sqrt(252)
        sharpe_ratio         mean(r) / std(r, ddof=1) * sqrt(252), with a risk-free rate of 0
        maximum_drawdown     min(p / running maximum of p - 1), at most 0
        calmar_ratio         annual_return / |maximum_drawdown|

    A ratio whose denominator is 0 (the account never changes, or never falls) is 0.

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


def equal_weight(close: Array, initial_cash: float, cost: float, member: Flags | None = None) -> Array:
    """Computes buy and hold of the equal-weight pool: equal amounts of money in every stock at the first close.

    It pays the same fee as a trader. Shares are fractional, so the baseline does not depend on the price of a single
    share. As in a trader's account, the first value is the cash before the purchase.

    Args:
        close: [days, n].
        initial_cash: Money invested.
        cost: Fee as a fraction of the traded value.
        member: [n] whether a stock belongs to the pool on the first day; only these are bought, or all if none does.

    Returns:
        [days] account value at each close.
    """
    if member is not None and member.any():
        close = close[:, member]
    growth = (close / close[0]).mean(axis=1)
    account_value: Array = initial_cash / (1 + cost) * growth
    account_value[0] = initial_cash
    return account_value


@dataclass(frozen=True)
class TradingRecord:
    """The state of an account in every row of a split, from which its trades follow."""

    account_value: Array
    """[rows]."""
    shares: Array
    """[rows, n], held before the orders of the row."""
    close: Array
    """[rows, n]."""
    cost: float
    """Fee as a fraction of the traded value."""

    @cached_property
    def traded_shares(self) -> Array:
        """[rows, n] shares bought (or, if negative, sold) at the close of each row; 0 in the last row."""
        return np.diff(self.shares, axis=0, append=self.shares[-1:])

    @cached_property
    def traded_value(self) -> Array:
        """[rows, n] value of the trades, in money, at least 0."""
        value: Array = np.abs(self.traded_shares) * self.close
        return value

    @property
    def costs(self) -> Array:
        """[rows, n] fees, in money."""
        return self.cost * self.traded_value

    @property
    def exposure(self) -> Array:
        """[rows] value of the shares / account value."""
        exposure: Array = (self.shares * self.close).sum(1) / self.account_value
        return exposure

    def turnover(self, ends: NDArray[np.int64]) -> Array:
        """Computes value traded on each day / account value at its close, [days], from the last row of each day."""
        traded = np.add.reduceat(self.traded_value.sum(1), np.append(0, ends[:-1] + 1))
        turnover: Array = traded / self.account_value[ends]
        return turnover

    def attribution(self) -> Array:
        """Computes the cumulative gain of each stock up to each row, [rows, n], in money, after fees.

        The sum over the stocks equals the gain of the account.
        """
        gains = self.shares[1:] * np.diff(self.close, axis=0) - self.costs[:-1]
        return np.concatenate([np.zeros_like(gains[:1]), np.cumsum(gains, axis=0)])
