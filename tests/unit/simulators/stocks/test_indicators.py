from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from podrace.errors import InvalidArgument
from simulators.stocks.data import Prices, load_prices
from simulators.stocks.indicators import (
    INDICATOR_HISTORY_DAYS,
    NORMALIZATIONS,
    TURBULENCE_WINDOW,
    market_features,
    technical_indicators,
    turbulence,
)
from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions

WriteFrame = Callable[[pd.DataFrame], str]


@pytest.fixture
def prices(random_prices: pd.DataFrame, write_prices: WriteFrame) -> Prices:
    return load_prices(write_prices(random_prices))


def with_another_future(prices: Prices, row: int) -> Prices:
    """Returns the same prices up to `row`, and different, more volatile ones from there on."""
    days = len(prices.dates) - row
    factor = np.ones_like(prices.close)
    factor[row:] = np.random.default_rng(1).uniform(0.2, 5, (days, len(prices.tickers)))
    return replace(prices, high=prices.high * factor, low=prices.low * factor, close=prices.close * factor)


@pytest.mark.parametrize("row", [60, 200, 399])
def test_an_indicator_does_not_change_when_later_days_do(prices: Prices, row: int) -> None:
    known = technical_indicators(prices)
    for name, values in technical_indicators(with_another_future(prices, row)).items():
        np.testing.assert_array_equal(values[:row], known[name][:row], err_msg=name)
        assert (values[row:] != known[name][row:]).any(), name


def test_an_indicator_does_not_change_when_later_days_are_missing(prices: Prices) -> None:
    known = technical_indicators(prices)
    for name, values in technical_indicators(prices.until(150)).items():
        np.testing.assert_array_equal(values, known[name][:150], err_msg=name)


def test_turbulence_does_not_change_when_later_days_do(prices: Prices) -> None:
    row = 300
    known, altered = turbulence(prices.close), turbulence(with_another_future(prices, row).close)
    np.testing.assert_array_equal(known[:row], altered[:row])
    assert altered[row] > 100 * known[row]


def test_averages_and_bands_have_the_windows_in_their_names(prices: Prices) -> None:
    indicators, close, row = technical_indicators(prices), prices.close, 250
    np.testing.assert_allclose(indicators["close_30_sma"][row], close[row - 29 : row + 1].mean(0))
    np.testing.assert_allclose(indicators["close_60_sma"][row], close[row - 59 : row + 1].mean(0))
    window = close[row - 19 : row + 1]
    np.testing.assert_allclose(indicators["boll_ub"][row], window.mean(0) + 2 * window.std(0, ddof=1))
    np.testing.assert_allclose(indicators["boll_lb"][row], window.mean(0) - 2 * window.std(0, ddof=1))


def test_turbulence_is_the_mahalanobis_distance_to_the_252_days_before(prices: Prices) -> None:
    returns = prices.close[1:] / prices.close[:-1] - 1
    index = turbulence(prices.close)
    assert np.isnan(index[: TURBULENCE_WINDOW + 1]).all()
    for row in (TURBULENCE_WINDOW + 1, 399):
        past = returns[row - 1 - 252 : row - 1]
        surprise = returns[row - 1] - past.mean(0)
        expected = surprise @ np.linalg.inv(np.cov(past.T)) @ surprise
        np.testing.assert_allclose(index[row], expected, rtol=1e-9)


def test_turbulence_of_few_days_or_one_stock_is_defined(prices: Prices) -> None:
    assert np.isnan(turbulence(prices.close[: TURBULENCE_WINDOW + 1])).all()
    assert np.isfinite(turbulence(prices.close[:, :1])[TURBULENCE_WINDOW + 1 :]).all()


def test_turbulence_is_finite_when_a_price_does_not_move(prices: Prices) -> None:
    close = prices.close.copy()
    close[:, 1] = 7.0
    assert np.isfinite(turbulence(close)[TURBULENCE_WINDOW + 1 :]).all()


def test_features_are_of_unit_size_on_real_prices() -> None:
    prices = load_prices()
    features = market_features(prices, prices.close[INDICATOR_HISTORY_DAYS])[INDICATOR_HISTORY_DAYS:]
    blocks = features.reshape(len(features), 1 + len(NORMALIZATIONS), len(prices.tickers))
    assert (blocks.std((0, 2)) > 0.3).all()
    assert (blocks.std((0, 2)) < 2).all()
    assert np.abs(features).max() < 12


def test_features_do_not_depend_on_the_unit_of_money(prices: Prices) -> None:
    pennies = replace(prices, high=prices.high * 100, low=prices.low * 100, close=prices.close * 100)
    expected = market_features(prices, prices.close[59])[59:]
    np.testing.assert_allclose(market_features(pennies, pennies.close[59])[59:], expected, rtol=1e-4, atol=1e-4)


def test_a_stock_whose_price_does_not_move_is_refused_with_ticker_and_date(prices: Prices) -> None:
    high, low, close = prices.high.copy(), prices.low.copy(), prices.close.copy()
    for values in (high, low, close):
        values[:101, 1] = 7.0
    first_day = prices.dates[INDICATOR_HISTORY_DAYS]
    with pytest.raises(InvalidArgument, match=f"BBB {first_day}: .* is undefined because the price did not move"):
        market_features(replace(prices, high=high, low=low, close=close), close[INDICATOR_HISTORY_DAYS])


def test_a_market_is_the_same_whether_or_not_the_file_continues_after_its_split(
    random_prices: pd.DataFrame, write_prices: WriteFrame
) -> None:
    options = StockOptions(train_end="2016-03-01", validation_end="2016-05-01")
    cut_short = random_prices[random_prices["date"] < "2016-03-01"]
    for threshold in (0.0, 5.0):
        whole, short = (
            load_market(replace(options, path=write_prices(frame), turbulence_threshold=threshold))
            for frame in (random_prices, cut_short)
        )
        assert whole.dates == short.dates
        assert torch.equal(whole.close, short.close)
        assert torch.equal(whole.features, short.features)
        assert (whole.turbulent is None) == (threshold == 0)
        if whole.turbulent is not None and short.turbulent is not None:
            assert torch.equal(whole.turbulent, short.turbulent)
            assert whole.turbulent.any()
            assert not whole.turbulent.all()


def test_a_training_market_has_no_day_of_validation_or_backtest() -> None:
    train, validation, backtest = (
        load_market(StockOptions(split=split)) for split in ("train", "validation", "backtest")
    )
    assert train.dates[-1] < "2010-01-01" <= validation.dates[0]
    assert validation.dates[-1] < "2011-07-01" <= backtest.dates[0]
    assert len(train.dates) == len(train.close) == len(train.features)


def test_every_split_measures_prices_from_the_first_training_day() -> None:
    train, validation = (load_market(StockOptions(split=split)) for split in ("train", "validation"))
    assert train.features[0, :4].tolist() == [0, 0, 0, 0]
    expected = (validation.close[5] / train.close[0]).log().float()
    torch.testing.assert_close(validation.features[5, :4], expected)
