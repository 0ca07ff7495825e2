import math

import torch
from torch import Tensor

from simulators.stocks.trading import trade


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def trade_one_by_one(
    orders: list[float], close: list[float], cash: float, shares: list[float], cost: float
) -> tuple[float, list[float]]:
    """Applies the rules as FinRL writes them: one lane, one stock after the other."""
    shares = list(shares)
    by_size = sorted(range(len(orders)), key=lambda stock: orders[stock])
    for stock in [stock for stock in by_size if orders[stock] < 0]:
        sold = min(-orders[stock], shares[stock])
        cash += sold * close[stock] * (1 - cost)
        shares[stock] -= sold
    for stock in sorted(range(len(orders)), key=lambda stock: -orders[stock]):
        if orders[stock] > 0:
            bought = min(orders[stock], cash // (close[stock] * (1 + cost)))
            cash -= bought * close[stock] * (1 + cost)
            shares[stock] += bought
    return cash, shares


def random_accounts(lanes: int, stocks: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(high: float, *shape: int) -> Tensor:
        return high * torch.rand(shape, generator=generator, dtype=torch.float64)

    orders = (uniform(400, lanes, stocks) - 200).trunc()
    return orders, uniform(100, lanes, stocks) + 0.01, uniform(3e4, lanes), uniform(150, lanes, stocks).trunc()


def test_all_lanes_at_once_are_the_same_as_one_lane_and_one_stock_after_the_other() -> None:
    orders, close, cash, shares = random_accounts(2000, 5, seed=3)
    new_cash, new_shares = trade(orders, close, cash, shares, 0.001)
    one_by_one = [
        trade_one_by_one(*lane, 0.001)
        for lane in zip(orders.tolist(), close.tolist(), cash.tolist(), shares.tolist(), strict=True)
    ]
    assert new_shares.tolist() == [lane_shares for _, lane_shares in one_by_one]
    torch.testing.assert_close(new_cash, tensor([lane_cash for lane_cash, _ in one_by_one])[0], rtol=0, atol=1e-9)
    # The test is meaningful only if cash was short in many lanes, but not in all.
    wanted = shares + torch.where(orders < 0, -torch.minimum(-orders, shares), orders)
    short = (wanted != new_shares).any(1).double().mean().item()
    assert 0.1 < short < 0.9


def test_value_is_conserved_up_to_the_fees() -> None:
    orders, close, cash, shares = random_accounts(2000, 4, seed=4)
    new_cash, new_shares = trade(orders, close, cash, shares, 0.002)
    fees = 0.002 * ((new_shares - shares).abs() * close).sum(1)
    before, after = cash + (shares * close).sum(1), new_cash + (new_shares * close).sum(1)
    torch.testing.assert_close(after, before - fees, rtol=0, atol=1e-8)


def test_cash_and_shares_are_never_negative_and_shares_stay_whole() -> None:
    for seed in range(20):
        orders, close, cash, shares = random_accounts(5000, 4, seed)
        # Prices without an exact binary representation, and cash that pays for a whole number of shares exactly.
        close = (close * 10).trunc() / 10 + 0.1
        cash = (close * (1 + 0.001)).sum(1) * (cash / 1000).trunc()
        new_cash, new_shares = trade(orders.abs() * 10, close, cash, shares, 0.001)
        assert (new_cash >= 0).all()
        assert (new_shares >= 0).all()
        assert torch.equal(new_shares, new_shares.trunc())


def test_a_purchase_that_uses_exactly_all_cash_fills() -> None:
    cash, shares = trade(tensor([50.0]), tensor([20.0]), torch.tensor([1000.0]).double(), tensor([0.0]), 0.0)
    assert (cash.tolist(), shares.tolist()) == ([0.0], [[50.0]])


def test_the_fee_counts_in_what_is_affordable() -> None:
    cash, shares = trade(tensor([50.0]), tensor([20.0]), torch.tensor([1000.0]).double(), tensor([0.0]), 0.01)
    assert shares.tolist() == [[49.0]]
    assert math.isclose(cash.item(), 1000 - 49 * 20.2)


def test_sales_pay_for_purchases_of_the_same_day() -> None:
    cash, shares = trade(
        tensor([10.0, -5.0]), tensor([10.0, 20.0]), torch.tensor([0.0]).double(), tensor([0.0, 5.0]), 0.0
    )
    assert (cash.tolist(), shares.tolist()) == ([0.0], [[10.0, 0.0]])


def test_the_largest_purchase_is_filled_first_and_ties_by_index() -> None:
    close, cash, none = tensor([10.0, 10.0, 10.0]), torch.tensor([100.0]).double(), tensor([0.0, 0.0, 0.0])
    assert trade(tensor([6.0, 8.0, 7.0]), close, cash, none, 0.0)[1].tolist() == [[0.0, 8.0, 2.0]]
    assert trade(tensor([6.0, 6.0, 6.0]), close, cash, none, 0.0)[1].tolist() == [[6.0, 4.0, 0.0]]


def test_a_sale_is_limited_by_the_shares_held() -> None:
    cash, shares = trade(tensor([-9.0]), tensor([10.0]), torch.tensor([0.0]).double(), tensor([4.0]), 0.1)
    assert (cash.tolist(), shares.tolist()) == ([36.0], [[0.0]])
