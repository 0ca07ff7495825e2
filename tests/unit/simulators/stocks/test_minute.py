"""Bars shorter than a day: the close of a day is not known before its last bar."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from simulators import make
from simulators.stocks.bars import Bars, write_bars
from simulators.stocks.data import Prices, prices_of_bars
from simulators.stocks.environment import StockSimulator
from simulators.stocks.indicators import NEUTRAL, defined_indicators, known_turbulence, turbulence
from simulators.stocks.layouts import LAYOUTS
from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions
from simulators.stocks.synthetic import SyntheticMarket, synthetic_bars

A_DAY = 13
MARKET = SyntheticMarket(symbols=3, days=60, seed=2, bar_minutes=30)
WINDOW = 20


@pytest.fixture(scope="module")
def bars() -> Bars:
    return synthetic_bars(MARKET)


@pytest.fixture(scope="module")
def prices(bars: Bars) -> Prices:
    return prices_of_bars("test", bars)


def another_future(prices: Prices, row: int) -> Prices:
    """Returns the same prices up to `row`, and different ones from there on."""
    factor = np.ones(prices.close.shape)
    factor[row:] = np.random.default_rng(row).uniform(0.3, 3, factor[row:].shape)
    return replace(prices, high=prices.high * factor, low=prices.low * factor, close=prices.close * factor)


@pytest.mark.long
@pytest.mark.parametrize("row", [200, 400 * A_DAY // A_DAY + 1, 30 * A_DAY, 31 * A_DAY - 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_feature_of_any_layout_depends_on_later_bars(prices: Prices, layout: str, row: int) -> None:
    reference = prices.close[59]
    known = LAYOUTS[layout].features(prices, reference)
    altered = LAYOUTS[layout].features(another_future(prices, row), reference)
    cut = LAYOUTS[layout].features(prices.until(row), reference)
    np.testing.assert_array_equal(altered[59:row], known[59:row])
    np.testing.assert_array_equal(cut[59:], known[59:row])
    assert (altered[row] != known[row]).any()


@pytest.mark.parametrize("row", [30 * A_DAY, 30 * A_DAY + 5, 31 * A_DAY - 1])
def test_turbulence_depends_only_on_past_days(prices: Prices, row: int) -> None:
    known, altered = (known_turbulence(each, WINDOW) for each in (prices, another_future(prices, row)))
    # What happens from `row` on is not known before the next morning, not even at the close of that day.
    next_morning = 31 * A_DAY
    np.testing.assert_array_equal(known[:next_morning], altered[:next_morning])
    assert known[next_morning] != altered[next_morning]
    np.testing.assert_array_equal(known_turbulence(prices.until(row), WINDOW), known[:row])


def test_all_bars_of_a_day_know_the_index_of_the_day_before(prices: Prices) -> None:
    of_day = turbulence(prices.close[A_DAY - 1 :: A_DAY], WINDOW)
    known = known_turbulence(prices, WINDOW).reshape(-1, A_DAY)
    assert np.isnan(known[: WINDOW + 2]).all()
    np.testing.assert_array_equal(known[WINDOW + 2 :], np.repeat(of_day[WINDOW + 1 : -1, None], A_DAY, axis=1))


def test_at_a_daily_close_the_index_of_the_day_itself_is_known(prices: Prices) -> None:
    ends = prices.day_ends
    daily = replace(
        prices, dates=prices.dates[ends], high=prices.high[ends], low=prices.low[ends], close=prices.close[ends],
        bars_a_day=1,
    )  # fmt: skip
    np.testing.assert_array_equal(known_turbulence(daily, WINDOW), turbulence(daily.close, WINDOW))


def test_training_starts_on_the_first_morning_on_which_turbulence_is_known() -> None:
    options = StockOptions(
        path=MARKET.path, layout="minute", turbulence_threshold=3.0, turbulence_days=WINDOW, **MARKET.split_dates
    )  # type: ignore[arg-type]
    market = load_market(options)
    assert market.dates[0] == str(MARKET.dates[WINDOW + 2])
    assert market.dates[0] != market.dates[A_DAY]
    assert market.dates[0] == market.dates[A_DAY - 1]
    assert market.turbulent is not None
    assert torch.equal(market.features[:, 1] == 1, market.turbulent)
    assert 0 < market.turbulent.double().mean() < 1
    by_day = market.turbulent[: len(market.turbulent) // A_DAY * A_DAY].view(-1, A_DAY)
    assert torch.equal(by_day, by_day[:, :1].expand_as(by_day))


def test_a_training_market_is_the_same_whether_or_not_the_file_continues(tmp_path: Path, bars: Bars) -> None:
    end = str(MARKET.dates[40])
    cut = {
        name: getattr(bars, name)[: 40 * A_DAY]
        for name in ("open", "high", "low", "close", "volume", "filled", "repaired", "member", "time_utc_seconds",
                     "date", "half_day")
    }  # fmt: skip
    markets = []
    for name, each in (("whole.npz", bars), ("cut.npz", replace(bars, **cut))):
        write_bars(str(tmp_path / name), each)
        options = StockOptions(
            path=str(tmp_path / name), layout="minute", train_end=end, validation_end="", turbulence_threshold=3.0,
            turbulence_days=WINDOW,
        )  # fmt: skip
        markets.append(load_market(options))
    whole, short = markets
    assert whole.dates == short.dates
    assert torch.equal(whole.features, short.features)
    assert torch.equal(whole.close, short.close)


def test_an_episode_of_n_days_has_the_bars_of_n_full_days() -> None:
    simulator = make("stocks", 50, {"path": MARKET.path, "episode_days": 3})
    assert isinstance(simulator, StockSimulator)
    first = simulator.reset(1).clone()
    assert len({int(day) % A_DAY for day in simulator.day}) > 5
    steps = 1
    while not simulator.step(torch.zeros(50, 3)).truncated.any():
        steps += 1
    assert steps == 3 * A_DAY - 1
    assert not torch.equal(first, simulator.reset(2))


def with_arrays(tmp_path: Path, bars: Bars, **arrays: np.ndarray) -> StockSimulator:
    path = str(tmp_path / "prices.npz")
    write_bars(path, replace(bars, **arrays))
    options = {"path": path, "layout": "minute", "ignored_shares": 0, **MARKET.split_dates}
    simulator = make("stocks", 1, options)
    assert isinstance(simulator, StockSimulator)
    return simulator


def test_orders_do_not_fill_in_a_bar_without_trades(tmp_path: Path, bars: Bars) -> None:
    filled = np.zeros(bars.filled.shape, bool)
    filled[59, 0] = filled[61, 1] = True
    simulator = with_arrays(tmp_path, bars, filled=filled)
    buy, sell = torch.ones(1, 3), -torch.ones(1, 3)
    held = []
    for action in (buy, buy, sell, sell):
        simulator.step(action)
        held.append(simulator.shares[0].tolist())
    assert held == [[0, 100, 100], [100, 200, 200], [0, 200, 100], [0, 100, 0]]


def test_orders_do_not_fill_in_a_repaired_bar(tmp_path: Path, bars: Bars) -> None:
    repaired = np.zeros(bars.filled.shape, bool)
    repaired[59, 2] = True
    simulator = with_arrays(tmp_path, bars, repaired=repaired)
    simulator.step(torch.ones(1, 3))
    assert simulator.shares[0].tolist() == [100, 100, 0]


def test_a_stock_outside_the_pool_can_be_sold_but_not_bought(tmp_path: Path, bars: Bars) -> None:
    member = np.ones(bars.filled.shape, bool)
    member[60:63, 1] = False
    simulator = with_arrays(tmp_path, bars, member=member)
    held = []
    for action in (1.0, 1.0, -0.3, 1.0, 1.0):
        simulator.step(torch.full((1, 3), action))
        held.append(simulator.shares[0].tolist())
    assert held == [[100] * 3, [200, 100, 200], [170, 70, 170], [270, 70, 270], [370, 170, 370]]


def test_an_indicator_is_neutral_where_the_intraday_price_did_not_move(prices: Prices) -> None:
    still = {name: getattr(prices, name).copy() for name in ("high", "low", "close")}
    for values in still.values():
        values[:150, 1] = 7.0
    indicators = defined_indicators(replace(prices, **still))
    assert all(np.isfinite(values[59:]).all() for values in indicators.values())
    assert (indicators["rsi_30"][100:150, 1] == NEUTRAL["rsi_30"]).all()
    assert (indicators["cci_30"][100:150, 1] == NEUTRAL["cci_30"]).all()
