"""Compares the simulator with an independent environment of one account in plain Python (FinRL's MDP), and its laws."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import Market
from simulators.stocks.options import StockOptions
from simulators.stocks.trading import trade_in_lots


class FinRL:
    """One account as the paper defines it (arXiv 2011.09607), without tensors or other accounts."""

    def __init__(self, close: Any, indicators: Any, turbulent: Any, hmax: int, cost: float, cash: float) -> None:
        self.close, self.indicators, self.turbulent = close, indicators, turbulent
        self.hmax, self.cost, self.day, self.cash = hmax, cost, 0, cash
        self.shares = [0] * len(close[0])

    def state(self) -> list[float]:
        return [self.cash, *self.close[self.day], *self.shares, *self.indicators[self.day]]

    def value(self) -> float:
        return self.cash + sum(held * price for held, price in zip(self.shares, self.close[self.day], strict=True))

    def sell(self, stock: int, most: float) -> None:
        number = min(most, self.shares[stock])
        self.shares[stock] -= int(number)
        self.cash += number * self.close[self.day][stock] * (1 - self.cost)

    def buy(self, stock: int, most: int) -> None:
        price = self.close[self.day][stock] * (1 + self.cost)
        number = min(most, int(self.cash // price))
        self.shares[stock] += number
        self.cash -= number * price

    def step(self, action: Any) -> float:
        before = self.value()
        # A policy's action is float32, and so is its product with hmax.
        orders = [int(np.float32(fraction) * np.float32(self.hmax)) for fraction in action]
        stocks = range(len(orders))
        if self.turbulent[self.day]:
            for stock in stocks:
                self.sell(stock, float("inf"))
        else:
            for stock in sorted(stocks, key=lambda stock: orders[stock]):
                if orders[stock] < 0:
                    self.sell(stock, -orders[stock])
            for stock in sorted(stocks, key=lambda stock: -orders[stock]):
                if orders[stock] > 0:
                    self.buy(stock, orders[stock])
        self.day += 1
        return (self.value() - before) * 1e-4


def compare(trajectories: int, days: int, stocks: int, seed: int) -> int:
    """Plays random trajectories in both; returns the number of steps in which cash was short."""
    generator = np.random.default_rng(seed)
    close = 40 * np.exp(np.cumsum(generator.normal(0, 0.03, (days, stocks)), 0))
    indicators = generator.normal(0, 50, (days, 8 * stocks))
    turbulent = generator.random(days) < 0.08
    features = torch.tensor(np.concatenate([close, indicators], axis=1), dtype=torch.float32)
    names, dates = tuple(f"S{number}" for number in range(stocks)), tuple(f"{day:05d}" for day in range(days))
    market = Market(dates, names, torch.tensor(close), features, torch.tensor(turbulent))
    options = StockOptions(layout="finrl", initial_cash=1e5, maximum_shares=300, turbulence_threshold=1.0)
    simulator = StockSimulator(market, options, trajectories)
    seen = simulator.reset(0)
    accounts = [FinRL(close.tolist(), indicators.tolist(), turbulent, 300, 0.001, 1e5) for _ in range(trajectories)]
    short = 0
    for _ in range(days - 2):
        action = generator.uniform(-0.7, 1, (trajectories, stocks)).astype(np.float32)
        np.testing.assert_allclose(seen, np.array([account.state() for account in accounts]), rtol=1e-6, atol=0.02)
        step = simulator.step(torch.from_numpy(action))
        reward = [account.step(lane) for account, lane in zip(accounts, action, strict=True)]
        seen = step.observation
        assert simulator.shares.tolist() == [account.shares for account in accounts]
        np.testing.assert_allclose(simulator.cash, [account.cash for account in accounts], rtol=0, atol=1e-6)
        np.testing.assert_allclose(step.reward, reward, rtol=1e-5, atol=1e-8)
        short += sum(account.cash < close[account.day].max() for account in accounts)
    return short


def test_layout_finrl_equals_finrls_environment_step_by_step() -> None:
    assert compare(trajectories=100, days=40, stocks=5, seed=1) > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_trajectories_equal_finrls(seed: int) -> None:
    assert compare(trajectories=100, days=252, stocks=30, seed=seed) > 500


# --- laws of trading ---------------------------------------------------------------------------------------------

STOCKS = st.integers(1, 6)


@st.composite
def accounts(draw: st.DrawFn) -> dict[str, Any]:
    """Draws an account and its orders, in whole lots."""
    stocks, lot = draw(STOCKS), draw(st.sampled_from([1, 1, 5, 100]))
    row = {"min_size": stocks, "max_size": stocks}
    orders = draw(st.lists(st.integers(-5000, 5000), **row))
    close = draw(st.lists(st.floats(0.01, 5000, allow_nan=False), **row))
    shares = draw(st.lists(st.integers(0, 50), **row))
    return {
        "orders": torch.tensor([orders], dtype=torch.float64),
        "close": torch.tensor([close], dtype=torch.float64),
        "cash": torch.tensor([draw(st.floats(0, 1e6))], dtype=torch.float64),
        "shares": torch.tensor([shares], dtype=torch.float64) * lot,
        "cost": draw(st.sampled_from([0.0, 0.001, 0.1])),
        "lot_size": lot,
    }


@settings(max_examples=300)
@given(accounts())
def test_an_account_has_no_debt_and_only_whole_lots(account: dict[str, Any]) -> None:
    cash, shares = trade_in_lots(**account)
    assert (cash >= 0).all()
    assert (shares >= 0).all()
    assert torch.equal(shares % account["lot_size"], torch.zeros_like(shares))


@pytest.mark.long
@settings(max_examples=300)
@given(accounts())
def test_value_is_lost_only_to_fees(account: dict[str, Any]) -> None:
    cash, shares = trade_in_lots(**account)
    close, before = account["close"], account["cash"] + (account["shares"] * account["close"]).sum(1)
    fees = account["cost"] * ((shares - account["shares"]).abs() * close).sum(1)
    after = cash + (shares * close).sum(1)
    torch.testing.assert_close(after, before - fees, rtol=1e-12, atol=1e-6)


@settings(max_examples=300)
@given(accounts())
def test_no_order_fills_beyond_its_size_or_against_its_sign(account: dict[str, Any]) -> None:
    orders = account["orders"]
    _, shares = trade_in_lots(**account)
    filled = shares - account["shares"]
    assert (filled * orders >= 0).all()
    assert (filled.abs() <= orders.abs()).all()


@settings(max_examples=200)
@given(accounts())
def test_an_unfilled_purchase_was_not_affordable(account: dict[str, Any]) -> None:
    cash, shares = trade_in_lots(**account)
    lot, orders = account["lot_size"], account["orders"]
    wanted = (orders / lot).trunc() * lot
    short = (orders > 0) & (shares - account["shares"] < wanted)
    one_more = account["close"] * lot * (1 + account["cost"])
    assert (cash[:, None] < one_more)[short].all()
