"""How orders fill: a pure function over all lanes at once."""

import torch
from torch import Tensor


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
    bought = orders.clamp(min=0)
    # Whole shares leave room for a fraction that breaks ties by index: an unstable sort of distinct keys is faster.
    tie_break = torch.arange(bought.shape[1], device=bought.device) / -bought.shape[1]
    largest_first = torch.argsort(bought + tie_break, dim=1, descending=True)
    unit_costs = (close * (1 + cost)).gather(1, largest_first).unbind(1)
    wanted = bought.gather(1, largest_first).unbind(1)
    filled = []
    for shares_wanted, unit_cost in zip(wanted, unit_costs, strict=True):
        # Rounding mode "floor" is exact (by fmod), so that what is affordable never costs more than the cash.
        affordable = torch.div(cash, unit_cost, rounding_mode="floor")
        filled.append(torch.minimum(shares_wanted, affordable))
        cash = torch.addcmul(cash, filled[-1], unit_cost, value=-1)
    bought = torch.zeros_like(bought).scatter_(1, largest_first, torch.stack(filled, dim=1))
    return cash, shares - sold + bought
