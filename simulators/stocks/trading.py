"""How orders fill: a pure function over all lanes at once."""

import numpy as np
import torch
from torch import Tensor


def trade_in_lots(
    orders: Tensor, close: Tensor, cash: Tensor, shares: Tensor, cost: float, lot_size: int
) -> tuple[Tensor, Tensor]:
    """As `trade`, of multiples of `lot_size` shares; orders are cut to them, and shares held are such multiples."""
    if lot_size == 1:
        return trade(orders, close, cash, shares, cost)
    cash, lots = trade((orders / lot_size).trunc_(), close * lot_size, cash, shares / lot_size, cost)
    return cash, lots * lot_size


def trade(orders: Tensor, close: Tensor, cash: Tensor, shares: Tensor, cost: float) -> tuple[Tensor, Tensor]:
    """Fills the orders of one day at its close: all sales first, then purchases, the largest order first.

    The rules of FinRL's StockTradingEnv, with two mistakes of published variants left out: fees count in what is
    affordable, and purchases go by size rather than by index (ties by index), so that later stocks do not starve.
    A sale is limited by the shares held, a purchase by the whole shares that the remaining cash pays for. Sales do
    not compete with each other, hence need no order.

    Args:
        orders: [N, n] float64, whole shares; positive buys, negative sells.
        close: [N, n] float64, positive.
        cash: [N] float64, at least 0.
        shares: [N, n] float64, whole and at least 0.
        cost: Fee as a fraction of the traded value.

    Returns:
        Cash and shares afterwards, in the shapes given; neither is ever negative.
    """
    sold = torch.minimum(orders.neg().clamp_(min=0), shares)
    cash = cash + (sold * close).sum(1) * (1 - cost)
    filled, stock = _largest_first(orders)
    unit_costs = (close.t() * (1 + cost)).gather(0, stock)
    affordable = torch.empty_like(cash)
    for shares_wanted, unit_cost in zip(filled.unbind(), unit_costs.unbind(), strict=True):
        # Rounding mode "floor" is exact (by fmod), so that what is affordable never costs more than the cash.
        torch.div(cash, unit_cost, rounding_mode="floor", out=affordable)
        shares_filled = torch.minimum(shares_wanted, affordable, out=shares_wanted)
        cash.addcmul_(shares_filled, unit_cost, value=-1)
    bought = torch.empty_like(filled).scatter_(0, stock, filled)
    return cash, shares - sold + bought.t()


def _largest_first(orders: Tensor) -> tuple[Tensor, Tensor]:
    """Purchases by size and then by index, and whose they are: [n, N] float64 and int64, each lane's largest first.

    Both are written into one whole number, so that nothing but numbers is sorted: on processors numpy does that an
    order of magnitude faster than a sort that has to carry an index along. Lanes come last, because what follows goes
    from stock to stock.
    """
    stocks = orders.shape[1]
    bits = max(1, (stocks - 1).bit_length())
    keys = torch.arange(stocks, device=orders.device) - (orders.clamp(min=0).long() << bits)
    on_processors = keys.device.type == "cpu"
    keys = torch.from_numpy(np.sort(keys.numpy(), axis=1)) if on_processors else keys.sort(dim=1).values
    keys = keys.t().contiguous()
    return (keys >> bits).neg_().double(), keys & ((1 << bits) - 1)
