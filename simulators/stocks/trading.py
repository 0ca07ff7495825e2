"""Fills orders: a pure function over all lanes at once."""

import numpy as np
import torch
from torch import Tensor


def trade_in_lots(
    orders: Tensor, close: Tensor, cash: Tensor, shares: Tensor, cost: float, lot_size: int
) -> tuple[Tensor, Tensor]:
    """Fills orders as `trade` does, in multiples of `lot_size` shares.

    Orders are truncated to multiples; the shares held must be multiples.
    """
    if lot_size == 1:
        return trade(orders, close, cash, shares, cost)
    cash, lots = trade((orders / lot_size).trunc_(), close * lot_size, cash, shares / lot_size, cost)
    return cash, lots * lot_size


def trade(orders: Tensor, close: Tensor, cash: Tensor, shares: Tensor, cost: float) -> tuple[Tensor, Tensor]:
    """Fills the orders of one day at its close: first all sales, then purchases, the largest order first.

    These are the rules of FinRL's StockTradingEnv, without two mistakes of published variants: fees count in what is
    affordable, and purchases are filled by size, not by index (ties by index), so that later stocks do not starve. A
    sale is limited by the shares held, a purchase by the number of whole shares that the remaining cash pays for. Sales
    do not compete with each other, so their order is irrelevant.

    Args:
        orders: [N, n] float64, whole shares; positive buys, negative sells.
        close: [N, n] float64, positive.
        cash: [N] float64, at least 0.
        shares: [N, n] float64, whole and at least 0.
        cost: Fee as a fraction of the traded value.

    Returns:
        Cash and shares afterwards, with unchanged shapes; neither is ever negative.
    """
    sold = torch.minimum(orders.neg().clamp_(min=0), shares)
    cash = cash + (sold * close).sum(1) * (1 - cost)
    filled, stock = _largest_first(orders)
    unit_costs = (close.t() * (1 + cost)).gather(0, stock)
    affordable = torch.empty_like(cash)
    for shares_wanted, unit_cost in zip(filled.unbind(), unit_costs.unbind(), strict=True):
        # Rounding mode "floor" is exact (it uses fmod), so affordable shares never cost more than the cash.
        torch.div(cash, unit_cost, rounding_mode="floor", out=affordable)
        shares_filled = torch.minimum(shares_wanted, affordable, out=shares_wanted)
        cash.addcmul_(shares_filled, unit_cost, value=-1)
    bought = torch.empty_like(filled).scatter_(0, stock, filled)
    return cash, shares - sold + bought.t()


def _largest_first(orders: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts each lane's purchases, the largest first and ties by index: sizes [n, N] float64 and stocks [n, N] int64.

    Size and index are packed into one integer, so that only integers are sorted: numpy does that on the CPU an order of
    magnitude faster than a sort that also returns indices. Lanes are the last axis, because the caller iterates over
    the stocks.
    """
    stocks = orders.shape[1]
    bits = max(1, (stocks - 1).bit_length())
    keys = torch.arange(stocks, device=orders.device) - (orders.clamp(min=0).long() << bits)
    on_cpu = keys.device.type == "cpu"
    keys = torch.from_numpy(np.sort(keys.numpy(), axis=1)) if on_cpu else keys.sort(dim=1).values
    keys = keys.t().contiguous()
    return (keys >> bits).neg_().double(), keys & ((1 << bits) - 1)
