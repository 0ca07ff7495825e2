"""Stock trading: FinRL's task on daily prices, thousands of accounts in one tensor program."""

from collections.abc import Mapping

from simulators.options import parse_options
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import load_market
from simulators.stocks.options import StockOptions

__all__ = ["StockOptions", "StockSimulator", "make_stocks"]


def make_stocks(count: int, options: Mapping[str, object], device: str) -> StockSimulator:
    """Loads the data and makes `count` accounts; see `StockOptions` for the options.

    Raises:
        InvalidArgument: An option or the data cannot be used; the line says which.
        Unimplemented: The data's format needs a package that is not installed.
    """
    stock_options = parse_options("stocks", options, StockOptions)
    return StockSimulator(load_market(stock_options, device), stock_options, count)
