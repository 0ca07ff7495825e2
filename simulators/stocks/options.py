"""Defines the options of the trading task."""

from collections.abc import Mapping
from dataclasses import dataclass

from podrace.errors import InvalidArgument
from simulators.options import closest

SPLITS = ("train", "validation", "backtest")
MOST_FOLDS = 100
"""Largest number of validation folds."""

LAYOUT_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "scaled": {},
    "finrl": {},
    "minute": {
        "path": "synthetic:minute?symbols=10&days=60&seed=1",
        "reward_scale": 2.0**-13,
        "ignored_shares": 10,
    },
}
"""The published layouts, and the defaults that each one changes."""


@dataclass(frozen=True)
class StockOptions:
    """Options of the simulator `stocks`; dates are ISO (2010-01-31) and every split is half-open: [start, end).

    Fixed, and therefore not options: there is no short selling, cash earns no interest, and orders fill at the close
    that the account observes.

    Raises:
        InvalidArgument: A value is out of range.
    """

    tickers: tuple[str, ...] = ()
    """Stocks of the pool, in the order of the action. Empty: all stocks in the data."""
    path: str = ""
    """Source of the prices: an array file (`podrace data build`: daily or shorter bars), a CSV or Parquet file of daily
    prices (columns: simulators.stocks.data), or `synthetic:minute?symbols=10&days=60&seed=1`
    (simulators.stocks.synthetic). Empty: the built-in daily prices; in layout minute, synthetic ones."""
    layout: str = "scaled"
    """What an observation contains: scaled, finrl or minute (simulators.stocks.layouts). Layout minute changes other
    defaults to those of its publication: reward_scale 2^-13 and ignored_shares 10."""
    split: str = "train"
    """Days to trade: train [train_start, train_end), validation [train_end, validation_end) or backtest
    [validation_end, backtest_end). Nothing later than the split is ever loaded into the simulator. With `folds`,
    training and validation share [train_start, validation_end)."""
    folds: int = 0
    """Number of validation folds, spread over the years from train_start to validation_end
    (simulators.stocks.folds). Together they have as many days as there are from train_end to validation_end. Training
    leaves out the folds and, on both sides of each, the rows that features depend on. An evaluation plays episodes in
    all folds in turn; with episode_days 0, an episode is a fold. 0: validation is one period after training."""
    fold: int = 0
    """Plays episodes of split validation in this fold only, from 1; 0: in all."""
    embargo_bars: int = 0
    """With `folds`: further rows after each fold that training leaves out."""
    train_start: str = ""
    """First day of training. Empty: the first day with enough history for the indicators."""
    train_end: str = "2010-01-01"
    """First day of validation. For synthetic prices, this and validation_end default to dates that give training 70 %
    and validation 15 % of the days."""
    validation_end: str = "2011-07-01"
    """First day of the backtest."""
    backtest_end: str = ""
    """Empty: the end of the data."""
    episode_days: int = 0
    """Days (observed closes) in an episode, which has one step fewer; every episode starts on a random day. With bars
    shorter than a day, as many bars as that number of full days has, starting at any bar. 0: every episode is the whole
    split."""
    staggered: bool = False
    """Lane i of N skips i/N of its first episode, so that the episodes do not all end in the same step. Evaluations
    leave it out."""
    captured: bool = False
    """On a CUDA device: steps are replayed from a CUDA graph (simulators.cuda_graph)."""
    initial_cash: float = 1e6
    """Cash of an account at the beginning of an episode."""
    cost: float = 0.001
    """Fee as a fraction of the traded value, on each side."""
    maximum_shares: int = 100
    """Shares of one stock traded by an action of 1 (FinRL's hmax)."""
    lot_size: int = 1
    """Shares are traded in multiples of this number."""
    ignored_shares: int = 0
    """Orders of at most this many shares are ignored."""
    turbulence_threshold: float = 0.0
    """Turbulence index at which everything is sold and nothing is bought; 0: off."""
    turbulence_days: int = 252
    """Number of preceding days with which the turbulence index compares a day."""
    reward_scale: float = 1e-4
    """Reward per unit of money gained."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InvalidArgument(f"stocks: option 'split' must be one of {', '.join(SPLITS)}, not {self.split!r}")
        check_layout(self.layout)
        if not 0 <= self.folds <= MOST_FOLDS:
            raise InvalidArgument(f"stocks: option 'folds' must be 0 to {MOST_FOLDS}, not {self.folds}")
        if not 0 <= self.fold <= self.folds:
            raise InvalidArgument(f"stocks: option 'fold' must be 0 to folds = {self.folds}, not {self.fold}")
        if self.episode_days != 0 and self.episode_days < 2:
            raise InvalidArgument(f"stocks: option 'episode_days' must be 0 or at least 2, not {self.episode_days}")
        if not 0 <= self.cost < 1:
            raise InvalidArgument(f"stocks: option 'cost' must be in [0, 1), not {self.cost}")
        for name, least in (("turbulence_threshold", 0), ("ignored_shares", 0), ("lot_size", 1), ("embargo_bars", 0)):
            if not getattr(self, name) >= least:
                raise InvalidArgument(f"stocks: option {name!r} must be at least {least}, not {getattr(self, name)}")
        if self.turbulence_days < 2:
            raise InvalidArgument(f"stocks: option 'turbulence_days' must be at least 2, not {self.turbulence_days}")
        for name in ("initial_cash", "maximum_shares", "reward_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidArgument(f"stocks: option {name!r} must be positive, not {getattr(self, name)}")


def check_layout(layout: object) -> None:
    """Refuses an unknown layout.

    Raises:
        InvalidArgument: The layout is not a key of `LAYOUT_DEFAULTS`.
    """
    if layout not in LAYOUT_DEFAULTS:
        hint = closest(str(layout), LAYOUT_DEFAULTS)
        known = ", ".join(LAYOUT_DEFAULTS)
        raise InvalidArgument(f"stocks: option 'layout' must be one of {known}, not {layout!r}{hint}")
