"""The contents of a report besides the measures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from simulators import Report, make
from simulators.stocks.backtest import TradingRecord, performance
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions
from simulators.stocks.report import ATTRIBUTION_NUMBERS, RANDOM_TRADERS, attributed_stocks, make_report, random_traders

DAYS, BARS, STOCKS = 8, 3, 4
OPTIONS = StockOptions(split="backtest", maximum_shares=2000, cost=0.002)


@pytest.fixture(scope="module")
def market() -> Market:
    """Makes eight days of three bars."""
    generator = torch.Generator().manual_seed(1)
    rows = DAYS * BARS
    close = (0.02 * torch.randn(rows, STOCKS, generator=generator, dtype=torch.float64)).cumsum(0).exp() * 30
    dates = tuple(f"2020-01-{2 + row // BARS:02d}" for row in range(rows))
    index = 300 + torch.arange(rows, dtype=torch.float64)
    features = torch.zeros(rows, 9 * STOCKS)
    return Market(dates, ("A", "B", "C", "D"), close, features, index_close=index, bars_a_day=BARS)


def accounts(market: Market) -> Callable[[int], StockSimulator]:
    """Makes accounts that trade the whole split together, as the simulator of a report does."""
    return lambda count: StockSimulator(market, OPTIONS, count)


def traded(market: Market, options: StockOptions = OPTIONS) -> tuple[Report, dict[str, np.ndarray]]:
    """Returns the report of a random trader, and its values and shares recorded step by step."""
    simulator = StockSimulator(market, options, 1)
    generator = torch.Generator().manual_seed(2)
    kept: dict[str, list[Any]] = {"value": [], "shares": []}
    for _ in range(len(market.close) - 1):
        kept["value"].append(simulator.account_value[0].item())
        kept["shares"].append(simulator.shares[0].tolist())
        step = simulator.step(2 * torch.rand(1, STOCKS, generator=generator) - 1)
    assert step.truncated.all()
    record = simulator._record[: len(market.close)]
    kept["value"].append(record[-1, 0].item())
    kept["shares"].append(record[-1, 2:].tolist())
    return simulator.report(), {name: np.array(values) for name, values in kept.items()}


def test_values_are_taken_at_each_days_close(market: Market) -> None:
    report, kept = traded(market)
    assert report.labels == {"date": [f"2020-01-{2 + day:02d}" for day in range(DAYS)]}
    assert report.traces["account_value"] == kept["value"][BARS - 1 :: BARS].tolist()
    assert {len(values) for values in report.traces.values()} == {DAYS}
    own = {name: report.metrics[name] for name in performance(np.ones(3))}
    assert own == performance(kept["value"][BARS - 1 :: BARS])


def test_the_gains_of_the_stocks_add_up_to_the_gain_of_the_account(market: Market) -> None:
    report, kept = traded(market)
    brought = [values for name, values in report.traces.items() if name.startswith("attribution:")]
    assert sorted(name for name in report.traces if ":" in name) == [f"attribution:{ticker}" for ticker in "ABCD"]
    gained = kept["value"][BARS - 1 :: BARS] - 1e6
    np.testing.assert_allclose(np.sum(brought, axis=0), gained, rtol=0, atol=1e-6)


def test_costs_turnover_and_exposure_are_those_of_the_fills(market: Market) -> None:
    report, kept = traded(market)
    close = market.close.numpy()
    filled = np.abs(np.diff(kept["shares"], axis=0))
    value = (filled * close[:-1]).sum(1)
    assert report.metrics["costs_paid"] == pytest.approx(0.002 * value.sum())
    assert report.traces["costs_paid"][-1] == pytest.approx(0.002 * value.sum())
    assert report.metrics["fills"] == np.count_nonzero(filled)
    by_day = np.append(value, 0.0).reshape(DAYS, BARS).sum(1)
    turnover = by_day / kept["value"][BARS - 1 :: BARS]
    np.testing.assert_allclose(report.traces["turnover"], turnover)
    assert report.metrics["mean_turnover"] == pytest.approx(turnover.mean())
    exposure = (kept["shares"] * close).sum(1) / kept["value"]
    np.testing.assert_allclose(report.traces["exposure"], exposure[BARS - 1 :: BARS])
    assert report.metrics["mean_exposure"] == pytest.approx(exposure.mean())
    assert min(report.traces["drawdown"]) == pytest.approx(report.metrics["maximum_drawdown"])


def test_the_index_is_measured_by_its_own_closes(market: Market) -> None:
    report, _ = traded(market)
    closes = 300.0 + np.arange(BARS - 1, DAYS * BARS, BARS)
    expected = performance(closes)
    assert {name: report.metrics[f"index_{name}"] for name in expected} == pytest.approx(expected)
    np.testing.assert_allclose(report.traces["index_value"], 1e6 * closes / 300)
    without, _ = traded(replace(market, index_close=None))
    assert not [name for name in (*without.metrics, *without.traces) if name.startswith("index")]


def test_there_are_several_random_traders_and_they_are_reproducible(market: Market) -> None:
    values = random_traders(market, OPTIONS, accounts(market)(RANDOM_TRADERS))
    assert values.shape == (DAYS * BARS, RANDOM_TRADERS)
    assert len(set(values[-1].tolist())) == RANDOM_TRADERS
    report, _ = traded(market)
    staggered, _ = traded(market, replace(OPTIONS, staggered=True))
    assert staggered.traces["random_mean_value"] == report.traces["random_mean_value"]
    ends = values[BARS - 1 :: BARS]
    np.testing.assert_allclose(report.traces["random_mean_value"], ends.mean(1))
    np.testing.assert_allclose(report.traces["random_low_value"], ends.min(1))
    sharpe = np.mean([performance(trader)["sharpe_ratio"] for trader in ends.T])
    assert report.metrics["random_sharpe_ratio"] == pytest.approx(sharpe)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_only_a_backtest_reports_the_costly_measures(market: Market, split: str) -> None:
    report, _ = traded(market, replace(OPTIONS, split=split))
    assert set(report.traces) == {"account_value", "equal_weight_value"}
    assert len(report.metrics) == 12


def test_a_report_fits_into_a_message() -> None:
    for days, stocks in ((98, 59), (252, 500), (2520, 500), (10_000, 3)):
        numbers = days * (attributed_stocks(days, stocks) + 1)
        assert numbers <= max(ATTRIBUTION_NUMBERS + days, 2 * days)
    assert attributed_stocks(98, 59) == 59


def test_stocks_without_their_own_trace_are_reported_together(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = traded(market)
    monkeypatch.setattr("simulators.stocks.report.ATTRIBUTION_NUMBERS", 2 * DAYS)
    some, _ = traded(market)
    last = {name: values[-1] for name, values in whole.traces.items() if ":" in name}
    largest = sorted(last, key=lambda name: -abs(last[name]))[:2]
    assert [name for name in some.traces if ":" in name] == [*largest, "attribution:(others)"]
    others = sum(value for name, value in last.items() if name not in largest)
    assert some.traces["attribution:(others)"][-1] == pytest.approx(others)


def test_a_record_of_one_stock_computed_by_hand() -> None:
    record = TradingRecord(
        account_value=np.array([100.0, 104.0, 112.0]),
        shares=np.array([[0.0], [10.0], [4.0]]),
        close=np.array([[5.0], [6.0], [8.0]]),
        cost=0.1,
    )
    assert record.traded_shares.tolist() == [[10], [-6], [0]]
    assert record.costs.tolist() == [[5.0], [pytest.approx(3.6)], [0]]
    # 10 shares gain 1 each and cost 5; 4 shares gain 2 each and the sale of 6 costs 3.6.
    assert record.attribution().tolist() == [[0], [5], [pytest.approx(5 + 8 - 3.6)]]
    assert record.turnover(np.array([1, 2])).tolist() == [pytest.approx((50 + 36) / 104), 0]
    assert record.exposure.tolist() == [0, pytest.approx(60 / 104), pytest.approx(32 / 112)]


def test_a_split_of_two_days_has_values_and_no_measures() -> None:
    path = "synthetic:minute?symbols=2&days=12&seed=3"
    dates = {"train_end": "2020-01-08", "validation_end": "2020-01-16", "backtest_end": "2020-01-18"}
    simulator = make("stocks", 1, {"layout": "minute", "path": path, "split": "backtest", **dates})
    while not simulator.step(torch.ones(1, 2)).truncated.any():
        pass
    report = simulator.report()
    assert len(report.traces["account_value"]) == 2
    assert "sharpe_ratio" not in report.metrics
    assert "costs_paid" in report.metrics


def test_the_measures_of_a_report_can_be_computed_from_the_record_alone(market: Market) -> None:
    _, kept = traded(market)
    cash = kept["value"] - (kept["shares"] * market.close.numpy()).sum(1)
    record = np.concatenate([kept["value"][:, None], cash[:, None], kept["shares"]], axis=1)
    assert make_report(market, OPTIONS, record, accounts(market)) == replace(traded(market)[0], episode_metrics={})


def test_the_report_of_folds_is_one_account_that_trades_them_one_after_the_other(market: Market) -> None:
    blocks = (range(0, 3 * BARS), range(3 * BARS, 5 * BARS), range(5 * BARS, DAYS * BARS))
    options = replace(OPTIONS, split="validation")
    folded = replace(market, blocks=blocks, folds=(1, 2, 3))
    generator = torch.Generator().manual_seed(4)
    simulator = StockSimulator(folded, options, 3)
    starting = simulator._windows.block.tolist()
    values: list[list[float]] = [[1e6] for _ in blocks]
    for _ in range(3 * BARS - 1):
        step = simulator.step(2 * torch.rand(3, STOCKS, generator=generator) - 1)
        for lane, fold in enumerate(starting):
            if len(values[fold]) < len(blocks[fold]):
                values[fold].append(values[fold][-1] + step.reward[lane].item() / options.reward_scale)
    report = simulator.report()
    # The values at each day's close: 3, 2 and 3 days; the first close of a fold continues the fold before.
    first, second, third = (np.array(fold[BARS - 1 :: BARS]) for fold in values)
    expected = [*first, *(first[-1] * second[1:] / second[0])]
    expected += [*(expected[-1] * third[1:] / third[0])]
    assert report.traces["account_value"] == pytest.approx(expected, rel=1e-6)
    assert report.labels["date"] == [f"2020-01-{day:02d}" for day in (2, 3, 4, 6, 8, 9)]
    assert report.metrics["cumulative_return"] == pytest.approx(expected[-1] / expected[0] - 1, rel=1e-4)
    assert {"equal_weight_sharpe_ratio", "sharpe_ratio"} <= report.metrics.keys()


def test_a_fold_that_was_not_played_to_its_end_is_not_reported(market: Market) -> None:
    blocks = (range(0, 4 * BARS), range(4 * BARS, DAYS * BARS))
    folded = replace(market, blocks=blocks, folds=(1, 2))
    simulator = StockSimulator(folded, replace(OPTIONS, split="validation"), 1)
    fold = int(simulator._windows.block[0])
    for _ in range(4 * BARS - 2):
        simulator.step(torch.zeros(1, STOCKS))
    assert not simulator.report().traces
    simulator.step(torch.zeros(1, STOCKS))
    days = [f"2020-01-{2 + day:02d}" for day in (range(4), range(4, DAYS))[fold]]
    assert simulator.report().labels["date"] == days
    assert simulator.report().traces["account_value"] == [1e6] * 4


def test_each_fold_of_a_report_is_the_account_of_one_lane_though_others_reach_its_fold_earlier(market: Market) -> None:
    blocks = (range(0, 2 * BARS), range(2 * BARS, DAYS * BARS))
    folded = replace(market, blocks=blocks, folds=(1, 2))
    simulator = StockSimulator(folded, replace(OPTIONS, split="validation"), 3)
    lane = simulator._windows.block.tolist().index(1)
    generator, values = torch.Generator().manual_seed(4), [1e6]
    for _ in range(len(blocks[1]) - 1):
        step = simulator.step(2 * torch.rand(3, STOCKS, generator=generator) - 1)
        values.append(values[-1] + step.reward[lane].item() / OPTIONS.reward_scale)
    assert step.truncated[lane]
    ends = np.array(values)[BARS - 1 :: BARS]
    reported = np.array(simulator.report().traces["account_value"])[1:]
    np.testing.assert_allclose(reported / reported[0], ends / ends[0], rtol=1e-6)
