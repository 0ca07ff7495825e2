"""Computes when an exchange is open, and which bars are therefore expected; independent of prices."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from podrace.errors import InvalidArgument, Unimplemented
from simulators.options import closest
from simulators.stocks.bars import SECONDS_A_DAY, Flags

NO_CALENDAR = "none"
AROUND = np.timedelta64(14, "D")
Seconds = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """The expected bars of some days, with or without trades."""

    time_utc_seconds: Seconds
    """[bars] start of the bar; for daily bars, the open of the session."""
    key: Seconds
    """[bars] keys by which raw bars are matched: the start of the bar; for daily bars, midnight UTC of the date."""
    date: NDArray[np.datetime64]
    """[bars] datetime64[D]."""
    half_day: Flags
    """[bars]."""
    opening: Seconds
    """[days] open of each session in Unix seconds; the next field is its close."""
    closing: Seconds


def timezone_of(calendar: str) -> str:
    """Returns the IANA name of an exchange's time zone; UTC without a calendar.

    Raises:
        InvalidArgument: The calendar is unknown.
        Unimplemented: exchange_calendars is not installed.
    """
    return "UTC" if calendar == NO_CALENDAR else str(_calendar(calendar).tz)


def session_grid(calendar: str, first: np.datetime64, last: np.datetime64, bar_seconds: int) -> Grid:
    """Computes the expected bars of an exchange.

    Args:
        calendar: Its name in exchange_calendars (XNYS).
        first: The first day.
        last: The last day, inclusive.
        bar_seconds: Length of a bar; 86,400 for days. The last bar of a session may be shorter.

    Raises:
        InvalidArgument: The calendar is unknown, or has no session in these days.
        Unimplemented: exchange_calendars is not installed.
    """
    # Surrounding days are included: if the data had only half days, they would otherwise look like full ones.
    around = _calendar(calendar, str(first - AROUND), str(last + AROUND)).schedule
    full_length = (around["close"] - around["open"]).median()
    schedule = around.loc[str(first) : str(last)]
    if schedule.empty:
        raise InvalidArgument(f"calendar {calendar} has no session from {first} to {last}")
    dates = schedule.index.to_numpy().astype("datetime64[D]")
    opening, closing, break_start, break_end = (
        _seconds(schedule[name]) for name in ("open", "close", "break_start", "break_end")
    )
    half = closing - opening < full_length.total_seconds()
    if bar_seconds >= SECONDS_A_DAY:
        return Grid(opening, _midnight(dates), dates, half, opening, closing)
    starts = [np.arange(begin, end, bar_seconds) for begin, end in zip(opening, closing, strict=True)]
    times = np.concatenate(starts)
    day = np.repeat(np.arange(len(dates)), [len(each) for each in starts])
    # Some exchanges' sessions include a lunch break; for the others its times are far in the past.
    open_then = (times < break_start[day]) | (times >= break_end[day])
    times, day = times[open_then], day[open_then]
    return Grid(times, times, dates[day], half[day], opening, closing)


def data_grid(times: Seconds, timezone: str, bar_seconds: int) -> Grid:
    """Builds the grid from the bars in the data, if there is no calendar.

    Args:
        times: [any] starts of raw bars, in any order, possibly repeated.
        timezone: Zone by which bars are assigned to days.
        bar_seconds: Length of a bar.
    """
    starts = np.unique(times)
    if bar_seconds >= SECONDS_A_DAY:
        dates = starts.astype("datetime64[s]").astype("datetime64[D]")
    else:
        local = pd.to_datetime(starts, unit="s", utc=True).tz_convert(timezone).tz_localize(None)
        dates = local.to_numpy().astype("datetime64[D]")
    return Grid(starts, starts, dates, np.zeros(len(starts), bool), starts[:1], starts[-1:] + bar_seconds)


def bar_length(symbols: NDArray[np.object_], times: Seconds) -> int:
    """Returns the length of intraday bars: the most frequent distance between a symbol's bars, in seconds.

    Raises:
        InvalidArgument: No symbol has two bars.
    """
    steps = np.diff(times)[(symbols[1:] == symbols[:-1]) & (np.diff(times) > 0)]
    if not len(steps):
        raise InvalidArgument(
            "the length of a bar cannot be derived from the data, because no symbol has two: set --bar"
        )
    lengths, counts = np.unique(steps, return_counts=True)
    return int(lengths[counts.argmax()])


def _calendar(name: str, first: str | None = None, last: str | None = None) -> Any:
    try:
        import exchange_calendars
    except ImportError as error:
        raise Unimplemented("a calendar needs exchange_calendars: pip install exchange-calendars") from error
    known = exchange_calendars.get_calendar_names()
    if name not in known:
        hint = closest(name, known) or ": for instance XNYS, XLON, or none"
        raise InvalidArgument(f"unknown calendar {name!r}{hint}")
    try:
        with warnings.catch_warnings():
            # exchange_calendars 4.13 reads values in a way that pandas 4 will change.
            warnings.filterwarnings("ignore", message="Series.values returning")
            return exchange_calendars.get_calendar(name, start=first, end=last)
    except ValueError as error:
        raise InvalidArgument(f"calendar {name}: {' '.join(str(error).split())}") from error


def _seconds(times: pd.Series) -> Seconds:
    known = times.dt.tz_localize(None).fillna(pd.Timestamp(0)).to_numpy()
    result: Seconds = known.astype("datetime64[s]").astype(np.int64)
    return result


def _midnight(dates: NDArray[np.datetime64]) -> Seconds:
    return dates.astype("datetime64[s]").astype(np.int64)
