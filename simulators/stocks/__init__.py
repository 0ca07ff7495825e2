"""Simulates stock trading: FinRL's task on daily prices or shorter bars, thousands of accounts in one tensor program.

simulators/stocks/
  options.py       the options of a specification
  environment.py   the accounts; trading.py: how orders fill; layouts.py: what is observed
  episodes.py      where episodes begin and end, and their measures
  market.py        one split as tensors; indicators.py: what is computed from prices
  folds.py         validation folds, purged from training (pure)
  report.py        what a trader did, compared with others; backtest.py: measures (pure)
  data.py          prices from any source; synthetic.py: prices generated from a seed
  bars.py          the array file
  pipeline.py      raw bars to an array file, step by step (pure); rows.py, sources.py, sessions.py, splits.py,
                   outliers.py
  __main__.py      the pipeline as a process, for `podrace data`
"""

from collections.abc import Mapping

from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from simulators.base import Simulator
from simulators.cuda_graph import CudaGraphSimulator
from simulators.options import parse_options
from simulators.stocks.environment import StockSimulator
from simulators.stocks.market import load_market
from simulators.stocks.options import LAYOUT_DEFAULTS, StockOptions, check_layout
from simulators.stocks.synthetic import is_synthetic, parse_synthetic

__all__ = ["StockOptions", "StockSimulator", "make"]


def make(id: str, count: int, options: Mapping[str, object], device: str, allowed: Allowed = EVERYTHING) -> Simulator:
    """Loads the data, which must be `allowed`, and makes `count` accounts; see `StockOptions` for the options.

    Raises:
        InvalidArgument: An option or the data cannot be used; the message says which.
        Unimplemented: The data's format needs a package that is not installed.
    """
    stock_options = parse_options(id, with_defaults(options), StockOptions)
    if stock_options.captured and not device.startswith("cuda"):
        raise InvalidArgument(f"{id}: option 'captured' needs a CUDA device, not {device!r}")
    simulator = StockSimulator(load_market(stock_options, device, allowed), stock_options, count)
    return CudaGraphSimulator(simulator, [simulator.generator]) if stock_options.captured else simulator


def with_defaults(options: Mapping[str, object]) -> dict[str, object]:
    """Completes a user's options with the defaults of the layout and the split dates of synthetic prices.

    Raises:
        InvalidArgument: The layout is unknown, or the path of the synthetic prices is malformed.
    """
    layout = options.get("layout", StockOptions.layout)
    check_layout(layout)
    completed = {**LAYOUT_DEFAULTS[str(layout)], **options}
    path = completed.get("path", "")
    dates = parse_synthetic(path).split_dates if isinstance(path, str) and is_synthetic(path) else {}
    return {**dates, **completed}
