"""What a user may set about the trading task."""

from dataclasses import dataclass

from podrace.errors import InvalidArgument

SPLITS = ("train", "validation", "backtest")


@dataclass(frozen=True)
class StockOptions:
    """Options of the simulator `stocks`; dates are ISO (2010-01-31) and every split is half-open: [start, end).

    Raises:
        InvalidArgument: A value is out of range.
    """

    tickers: tuple[str, ...] = ()
    """Stocks of the pool, in the order of the action; all that the data holds when empty."""
    path: str = ""
    """CSV or Parquet file of daily prices (columns: simulators.stocks.data); the built-in prices when empty."""
    split: str = "train"
    """Which days are traded: train [train_start, train_end), validation [train_end, validation_end) or backtest
    [validation_end, backtest_end). Nothing later than the split is ever loaded into the simulator."""
    train_start: str = ""
    """The first day with enough history for the indicators when empty."""
    train_end: str = "2010-01-01"
    validation_end: str = "2011-07-01"
    backtest_end: str = ""
    """The end of the data when empty."""
    episode_days: int = 0
    """Days (closes seen) in an episode, which has one step fewer; every episode begins on a day drawn at random.
    0: every episode is the whole split."""
    initial_cash: float = 1e6
    cost: float = 0.001
    """Fee as a fraction of the traded value, on each side."""
    maximum_shares: int = 100
    """Shares of one stock traded by an action of 1 (FinRL's hmax)."""
    turbulence_threshold: float = 0.0
    """Turbulence index from which everything is sold and nothing bought; 0 switches the guard off."""
    reward_scale: float = 1e-4
    """Reward for one unit of money gained."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InvalidArgument(f"stocks: option 'split' must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if self.episode_days != 0 and self.episode_days < 2:
            raise InvalidArgument(f"stocks: option 'episode_days' must be 0 or at least 2, not {self.episode_days}")
        if not 0 <= self.cost < 1:
            raise InvalidArgument(f"stocks: option 'cost' must be in [0, 1), not {self.cost}")
        if self.turbulence_threshold < 0:
            raise InvalidArgument(
                f"stocks: option 'turbulence_threshold' must be at least 0, not {self.turbulence_threshold}"
            )
        for name in ("initial_cash", "maximum_shares", "reward_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidArgument(f"stocks: option {name!r} must be positive, not {getattr(self, name)}")
