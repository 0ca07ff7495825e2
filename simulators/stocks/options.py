"""What a user may set about the trading task."""

from collections.abc import Mapping
from dataclasses import dataclass

from podrace.errors import InvalidArgument
from simulators.options import closest

SPLITS = ("train", "validation", "backtest")

LAYOUT_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "scaled": {},
    "finrl": {},
    "minute": {
        "path": "synthetic:minute?symbols=10&days=60&seed=1",
        "reward_scale": 2.0**-13,
        "ignored_shares": 10,
    },
}
"""The published layouts, and what a layout sets unless the user does."""


@dataclass(frozen=True)
class StockOptions:
    """Options of the simulator `stocks`; dates are ISO (2010-01-31) and every split is half-open: [start, end).

    Fixed, and hence no options: nothing is sold short, cash earns no interest, and orders fill at the close that the
    account sees.

    Raises:
        InvalidArgument: A value is out of range.
    """

    tickers: tuple[str, ...] = ()
    """Stocks of the pool, in the order of the action; all that the data holds when empty."""
    path: str = ""
    """Where the prices come from: an array file (`podrace data build`: daily or shorter bars), a CSV or Parquet file of
    daily prices (columns: simulators.stocks.data), or `synthetic:minute?symbols=10&days=60&seed=1`
    (simulators.stocks.synthetic). When empty, the built-in daily prices; in layout minute, synthetic ones."""
    layout: str = "scaled"
    """What an observation holds: scaled, finrl or minute (simulators.stocks.layouts). Layout minute also has other
    defaults, those of its publication: reward_scale 2^-13 and ignored_shares 10."""
    split: str = "train"
    """Which days are traded: train [train_start, train_end), validation [train_end, validation_end) or backtest
    [validation_end, backtest_end). Nothing later than the split is ever loaded into the simulator."""
    train_start: str = ""
    """The first day with enough history for the indicators when empty."""
    train_end: str = "2010-01-01"
    """As the next one, for synthetic prices, a day that leaves 70 % of the days to training, 15 % to validation."""
    validation_end: str = "2011-07-01"
    backtest_end: str = ""
    """The end of the data when empty."""
    episode_days: int = 0
    """Days (closes seen) in an episode, which has one step fewer; every episode begins on a day drawn at random. With
    shorter bars than days, as many bars as so many full days have, beginning at any bar. 0: every episode is the whole
    split."""
    staggered: bool = False
    """Lane i of N skips i/N of its first episode, so that episodes end in turn and not all in one step."""
    captured: bool = False
    """On a CUDA device: steps are played back as one CUDA graph (simulators.cuda_graph)."""
    initial_cash: float = 1e6
    cost: float = 0.001
    """Fee as a fraction of the traded value, on each side."""
    maximum_shares: int = 100
    """Shares of one stock traded by an action of 1 (FinRL's hmax)."""
    lot_size: int = 1
    """Shares are traded in multiples of this."""
    ignored_shares: int = 0
    """Orders of at most this many shares are ignored."""
    turbulence_threshold: float = 0.0
    """Turbulence index from which everything is sold and nothing bought; 0 switches the guard off."""
    turbulence_days: int = 252
    """Days before a day that its turbulence is measured against."""
    reward_scale: float = 1e-4
    """Reward for one unit of money gained."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InvalidArgument(f"stocks: option 'split' must be one of {', '.join(SPLITS)}, not {self.split!r}")
        check_layout(self.layout)
        if self.episode_days != 0 and self.episode_days < 2:
            raise InvalidArgument(f"stocks: option 'episode_days' must be 0 or at least 2, not {self.episode_days}")
        if not 0 <= self.cost < 1:
            raise InvalidArgument(f"stocks: option 'cost' must be in [0, 1), not {self.cost}")
        for name, least in (("turbulence_threshold", 0), ("ignored_shares", 0), ("lot_size", 1)):
            if not getattr(self, name) >= least:
                raise InvalidArgument(f"stocks: option {name!r} must be at least {least}, not {getattr(self, name)}")
        if self.turbulence_days < 2:
            raise InvalidArgument(f"stocks: option 'turbulence_days' must be at least 2, not {self.turbulence_days}")
        for name in ("initial_cash", "maximum_shares", "reward_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidArgument(f"stocks: option {name!r} must be positive, not {getattr(self, name)}")


def check_layout(layout: object) -> None:
    """Refuses a layout that there is not.

    Raises:
        InvalidArgument: It is none of `LAYOUT_DEFAULTS`.
    """
    if layout not in LAYOUT_DEFAULTS:
        hint = closest(str(layout), LAYOUT_DEFAULTS)
        known = ", ".join(LAYOUT_DEFAULTS)
        raise InvalidArgument(f"stocks: option 'layout' must be one of {known}, not {layout!r}{hint}")
