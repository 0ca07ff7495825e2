"""Defines the options of `podrace data build`, and selects and checks the rows of raw bars. Pure."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from podrace.errors import InvalidArgument
from simulators.options import closest
from simulators.stocks.bars import Array, Flags
from simulators.stocks.sources import NUMBERS, RawBars
from simulators.stocks.splits import Split

PRICES = NUMBERS[:4]


@dataclass(frozen=True)
class BuildOptions:
    """What to build from raw bars."""

    calendar: str = "XNYS"
    """Calendar of the exchange, by its name in exchange_calendars; 'none': every time in the data is a bar."""
    timezone: str = "America/New_York"
    bar_seconds: int = 0
    """Length of a bar; 0: taken from the data."""
    start: str = ""
    """ISO date of the first day; empty: that of the data."""
    end: str = ""
    """ISO date of the day after the last one; empty: that of the data."""
    symbols: tuple[str, ...] = ()
    """Symbols of the pool, in this order; empty: all."""
    index: str = ""
    """A symbol that is not part of the pool, and with which the pool is compared."""
    splits: tuple[Split, ...] = ()
    """Known splits for which the prices are not adjusted yet."""
    members: tuple[tuple[str, str, str], ...] = ()
    """(symbol, from, to): the symbol is a member of the pool from one ISO date until before another; '' means
    unlimited. Empty: all symbols are always members."""
    adjust: bool = False
    accept: tuple[str, ...] = ()
    """SYMBOL:DATE of price moves that look like splits but are not."""
    repair: bool = False
    maximum_gap_days: int = 5
    outlier_deviations: float = 20.0


def checked_rows(raw: RawBars, options: BuildOptions) -> tuple[pd.DataFrame, list[str]]:
    """Selects the rows that are used, and checks their order and numbers; returns them and notes.

    Raises:
        InvalidArgument: A bar is duplicated, out of order or impossible; the message names the row.
    """
    frame = _chosen(raw, options)
    step = frame.groupby("symbol")["seconds"].diff()
    if (step <= 0).any():
        row = int((step <= 0).to_numpy().argmax())
        fault = "the bar is duplicated" if step[row] == 0 else "the bar follows a later one; sort by time"
        raise InvalidArgument(f"{raw.source}: {where(raw, frame, row)}: {fault}")
    good = np.ones(len(frame), bool)
    for name in [name for name in (*NUMBERS, "adj_close") if name in frame]:
        values = frame[name].to_numpy()
        fits = np.isfinite(values) & (values >= 0 if name == "volume" else values > 0)
        good &= _refuse(raw, frame, fits, name, values, options)
    low = frame["low"].to_numpy()
    good &= _refuse(raw, frame, frame["high"].to_numpy() >= low, "high", frame["high"].to_numpy(), options)
    dropped = len(frame) - int(good.sum())
    notes = [f"{dropped} rows with impossible numbers counted as missing"] if dropped else []
    return frame[good].reset_index(drop=True), notes


def _chosen(raw: RawBars, options: BuildOptions) -> pd.DataFrame:
    known = sorted(raw.frame["symbol"].unique())
    wanted = [*options.symbols, *filter(None, [options.index])]
    for symbol in wanted:
        if symbol not in known:
            raise InvalidArgument(f"{raw.source}: no bars of {symbol!r}{closest(symbol, known)}")
    if len(set(wanted)) != len(wanted):
        raise InvalidArgument(f"{raw.source}: a symbol is named twice: {', '.join(wanted)}")
    frame = raw.frame if not options.symbols else raw.frame[raw.frame["symbol"].isin(wanted)]
    dates = pd.to_datetime(frame["seconds"], unit="s", utc=True)
    local = dates if raw.daily else dates.dt.tz_convert(options.timezone)
    day = local.dt.tz_localize(None).dt.normalize()
    if options.start:
        frame, day = frame[day >= pd.Timestamp(options.start)], day[day >= pd.Timestamp(options.start)]
    if options.end:
        frame = frame[day < pd.Timestamp(options.end)]
    if frame.empty:
        raise InvalidArgument(
            f"{raw.source}: no bars from {options.start or 'the first'} to {options.end or 'the last'}"
        )
    return frame.reset_index(drop=True)


def _refuse(raw: RawBars, frame: pd.DataFrame, fits: Flags, name: str, values: Array, options: BuildOptions) -> Flags:
    if not fits.all() and not options.repair:
        row = int((~fits).argmax())
        raise InvalidArgument(
            f"{raw.source}: {where(raw, frame, row)}: {name} is {values[row]:g}, which is impossible; "
            "with --repair the bar counts as missing"
        )
    return fits


def where(raw: RawBars, frame: pd.DataFrame, row: int) -> str:
    """Returns symbol and time of a row, for messages."""
    return f"{frame['symbol'][row]} {time_text(int(frame['seconds'][row]), raw.daily)}"


def time_text(seconds: int, daily: bool) -> str:
    """Returns a time for messages: the date, or the time in UTC."""
    time = np.datetime64(seconds, "s")
    return str(time.astype("datetime64[D]")) if daily else f"{time}Z"


def without_adjusted_close(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Multiplies prices by adj_close / close, if there is such a column, which removes splits and dividends."""
    if "adj_close" not in frame:
        return frame, []
    factor = frame["adj_close"] / frame["close"]
    changed = {name: frame[name] * factor for name in PRICES} | {"volume": frame["volume"] / factor}
    return frame.assign(**changed).drop(columns="adj_close"), ["adjusted by adj_close / close"]
