"""Reports a trader: measures of its account, its trades, and comparisons with other traders."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulators.base import Report, Step
from simulators.stocks.backtest import TradingRecord, equal_weight, performance
from simulators.stocks.bars import Array, Flags
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions

RANDOM_TRADERS = 8
"""Number of traders that trade at random, each with its own seed."""
RANDOM_SEED = 20_210_501
ATTRIBUTION_NUMBERS = 60_000
"""Limit of the attribution traces: with its date a number takes about 20 bytes of a message of at most 4 MiB."""
LEAST_DAYS = 3
"""Minimum number of days for which the measures are defined."""


class TradingAccounts(Protocol):
    """Accounts that are stepped together; `simulators.stocks.environment.StockSimulator` is one.

    Attributes:
        account_value: [N] float64.
    """

    account_value: Tensor

    def step(self, action: Tensor) -> Step:
        """See simulators.base.Simulator."""
        ...


def make_report(
    market: Market, options: StockOptions, record: Array, make_accounts: Callable[[int], TradingAccounts]
) -> Report:
    """Reports an account that traded a whole split.

    For every split: the measures of `simulators.stocks.backtest.performance`, without a prefix for the account and with
    the prefix `equal_weight_` for buy and hold of the equal-weight pool; traces `account_value` and
    `equal_weight_value`; labels `date`. Traces have one value per day, at its close. With bars shorter than a day too,
    p_1 is the account at the first day's close, as for the papers' index.

    For split `backtest` also:

        metrics  mean_turnover         value traded on a day / account value, mean over the days
                 mean_exposure         value of the shares / account value, mean over the rows
                 costs_paid            fees, in money
                 fills                 orders that filled
                 index_..., random_... measures of the index fund, if the data has one, and of traders that trade at
                                       random, mean over RANDOM_TRADERS seeds
        traces   turnover, exposure, costs_paid (cumulative), drawdown
                 index_value, random_mean_value, random_low_value, random_high_value
                 attribution:TICKER    cumulative gain of the stock in money, after fees; for the stocks with the
                                       largest gains or losses, and the sum of the others as attribution:(others)

    Args:
        market: The market that was traded.
        options: The options it was traded with.
        record: [rows, 2 + n] account value, cash and shares in every row, before the orders of the row.
        make_accounts: Makes a number of accounts that trade the whole split together, from its first row.
    """
    ends = market.day_ends
    close = market.close.cpu().numpy()
    account_value = record[ends, 0]
    baseline = equal_weight(close, options.initial_cash, options.cost, _members(market, 0))[ends]
    traces = {"account_value": account_value, "equal_weight_value": baseline}
    metrics = _measures("", account_value) | _measures("equal_weight_", baseline)
    if options.split == "backtest":
        trading = TradingRecord(record[:, 0], record[:, 2:], close, options.cost)
        metrics |= _habits(trading, ends)
        traces |= _activity(trading, ends) | _attributions(trading, ends, market.tickers)
        for comparison in (_index(market, options), _random(market, options, make_accounts)):
            metrics, traces = metrics | comparison[0], traces | comparison[1]
    return Report(
        metrics=metrics,
        traces={name: values.tolist() for name, values in traces.items()},
        labels={"date": [market.dates[row] for row in ends]},
    )


def make_fold_report(market: Market, options: StockOptions, played: Sequence[tuple[range, Array]]) -> Report:
    """Reports accounts that each traded one validation fold, as one account that trades the folds one after the other.

    The measures, traces and labels are those of `make_report` for split `validation`. The gain between two folds is 0,
    and a fold continues with the value at the end of the one before.

    Args:
        market: The market that was traded, whose blocks are the folds.
        options: The options it was traded with.
        played: For each fold that was traded, by time: its rows, and their record [rows, 2 + n] as in `make_report`.
    """
    account_values, baselines, dates = list[Array](), list[Array](), list[str]()
    for rows, record in played:
        close = market.close[rows.start : rows.stop].cpu().numpy()
        ends = market.day_ends
        ends = ends[(ends >= rows.start) & (ends < rows.stop)]
        account_values.append(record[ends - rows.start, 0])
        bought = equal_weight(close, options.initial_cash, options.cost, _members(market, rows.start))
        baselines.append(bought[ends - rows.start])
        # The first value of a fold is the last one of the fold before.
        dates += [market.dates[row] for row in (ends[1:] if dates else ends)]
    traces = {"account_value": _chained(account_values), "equal_weight_value": _chained(baselines)}
    return Report(
        metrics=_measures("", traces["account_value"]) | _measures("equal_weight_", traces["equal_weight_value"]),
        traces={name: values.tolist() for name, values in traces.items()},
        labels={"date": dates},
    )


def _members(market: Market, row: int) -> Flags | None:
    """Returns which stocks belong to the pool in a row, [n]; None if the data does not say."""
    return None if market.member is None else market.member[row].cpu().numpy()


def _chained(values: Sequence[Array]) -> Array:
    chain = values[0]
    for following in values[1:]:
        chain = np.concatenate([chain, chain[-1] * following[1:] / following[0]])
    return chain


def _measures(prefix: str, account_value: Array) -> dict[str, float]:
    if len(account_value) < LEAST_DAYS:
        return {}
    return {prefix + name: value for name, value in performance(account_value).items()}


def _habits(trading: TradingRecord, ends: NDArray[np.int64]) -> dict[str, float]:
    return {
        "mean_turnover": float(trading.turnover(ends).mean()),
        "mean_exposure": float(trading.exposure.mean()),
        "costs_paid": float(trading.costs.sum()),
        "fills": float(np.count_nonzero(trading.traded_shares)),
    }


def _activity(trading: TradingRecord, ends: NDArray[np.int64]) -> dict[str, Array]:
    account_value = trading.account_value[ends]
    return {
        "drawdown": account_value / np.maximum.accumulate(account_value) - 1,
        "turnover": trading.turnover(ends),
        "exposure": trading.exposure[ends],
        "costs_paid": np.cumsum(trading.costs.sum(1))[ends],
    }


def _attributions(trading: TradingRecord, ends: NDArray[np.int64], tickers: tuple[str, ...]) -> dict[str, Array]:
    brought = trading.attribution()[ends]
    shown = attributed_stocks(len(ends), len(tickers))
    largest_first = np.argsort(-np.abs(brought[-1]), kind="stable")
    traces = {f"attribution:{tickers[column]}": brought[:, column] for column in largest_first[:shown]}
    if shown < len(tickers):
        traces["attribution:(others)"] = brought[:, largest_first[shown:]].sum(1)
    return traces


def attributed_stocks(days: int, stocks: int) -> int:
    """Returns the number of stocks that get their own trace: all, or as many as fit in a message."""
    return min(stocks, max(1, ATTRIBUTION_NUMBERS // days))


def _index(market: Market, options: StockOptions) -> tuple[dict[str, float], dict[str, Array]]:
    if market.index_close is None:
        return {}, {}
    close = market.index_close.cpu().numpy()
    value = (options.initial_cash * close / close[0])[market.day_ends]
    return _measures("index_", value), {"index_value": value}


def _random(
    market: Market, options: StockOptions, make_accounts: Callable[[int], TradingAccounts]
) -> tuple[dict[str, float], dict[str, Array]]:
    values = random_traders(market, options, make_accounts(RANDOM_TRADERS))[market.day_ends]
    measures = [_measures("random_", trader) for trader in values.T]
    metrics = {name: float(np.mean([each[name] for each in measures])) for name in measures[0]}
    traces = {"mean": values.mean(1), "low": values.min(1), "high": values.max(1)}
    return metrics, {f"random_{name}_value": trace for name, trace in traces.items()}


def random_traders(market: Market, options: StockOptions, accounts: TradingAccounts) -> Array:
    """Computes the account values of RANDOM_TRADERS traders with actions uniform in [-1, 1], each with its own seed.

    Args:
        market: The market to trade.
        options: The options of the accounts.
        accounts: RANDOM_TRADERS accounts in the first row of the split.

    Returns:
        [rows, RANDOM_TRADERS].
    """
    device, stocks = market.close.device, len(market.tickers)
    generators = [torch.Generator().manual_seed(RANDOM_SEED + trader) for trader in range(RANDOM_TRADERS)]
    values = [accounts.account_value.clone()]
    for _ in range(len(market.close) - 1):
        actions = torch.stack([2 * torch.rand(stocks, generator=generator) - 1 for generator in generators])
        step = accounts.step(actions.to(device))
        # The last step already starts the next account, so the gain is taken from the reward.
        values.append(values[-1] + step.reward.double() / options.reward_scale)
    result: Array = torch.stack(values).cpu().numpy()
    return result
