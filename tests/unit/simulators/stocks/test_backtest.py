import math

import numpy as np
import pytest

from simulators.stocks.backtest import equal_weight, performance


def test_the_measures_follow_the_papers_convention() -> None:
    # Daily returns +10 %, -10 %, +10 %: mean 1/30, sum of squared deviations 2/75, ddof 1.
    metrics = performance(np.array([100.0, 110.0, 99.0, 108.9]))
    deviation = math.sqrt(2 / 75 / 2)
    expected = {
        "cumulative_return": 0.089,
        "annual_return": 1.089 ** (252 / 4) - 1,
        "annual_volatility": deviation * math.sqrt(252),
        "sharpe_ratio": (1 / 30) / deviation * math.sqrt(252),
        "maximum_drawdown": -0.1,
        "calmar_ratio": (1.089**63 - 1) / 0.1,
    }
    assert list(metrics) == list(expected)
    assert metrics == pytest.approx(expected, rel=1e-12)


def test_a_year_of_252_rows_has_an_annual_return_equal_to_its_cumulative_one() -> None:
    metrics = performance(np.linspace(100, 150, 252))
    assert metrics["annual_return"] == pytest.approx(metrics["cumulative_return"]) == pytest.approx(0.5)


def test_the_drawdown_is_measured_from_the_highest_value_so_server() -> None:
    assert performance(np.array([100.0, 80.0, 200.0, 120.0, 190.0]))["maximum_drawdown"] == pytest.approx(-0.4)


def test_an_account_that_never_moves_has_no_return_and_no_risk() -> None:
    assert set(performance(np.full(10, 1e6)).values()) == {0.0}


def test_an_account_that_never_falls_has_a_calmar_ratio_of_zero() -> None:
    metrics = performance(np.array([100.0, 110.0, 130.0]))
    assert (metrics["maximum_drawdown"], metrics["calmar_ratio"]) == (0.0, 0.0)
    assert metrics["sharpe_ratio"] > 0


def test_the_baseline_buys_equal_value_once_and_pays_the_fee() -> None:
    close = np.array([[10.0, 20.0], [11.0, 20.0], [12.0, 30.0]])
    # 1000 / 1.25 = 800: 40 shares of the first, 20 of the second.
    assert equal_weight(close, 1000.0, 0.25).tolist() == pytest.approx([1000.0, 840.0, 1080.0])


def test_the_baseline_buys_only_what_belongs_to_the_pool_on_the_first_day() -> None:
    close = np.array([[10.0, 20.0], [11.0, 20.0], [12.0, 30.0]])
    alone = equal_weight(close[:, :1], 1000.0, 0.25)
    np.testing.assert_allclose(equal_weight(close, 1000.0, 0.25, np.array([True, False])), alone)
    np.testing.assert_allclose(
        equal_weight(close, 1000.0, 0.25, np.array([False, False])), equal_weight(close, 1000.0, 0.25)
    )


def test_the_baseline_does_not_depend_on_the_size_of_a_share() -> None:
    close = np.random.default_rng(0).uniform(10, 20, (50, 3))
    np.testing.assert_allclose(equal_weight(close * [1, 1000, 0.01], 1e6, 0.001), equal_weight(close, 1e6, 0.001))
