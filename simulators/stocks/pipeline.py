"""Builds the arrays of a file from raw bars by pure functions that refuse, repair or note each kind of defect.

| input | result |
|---|---|
| bars of a symbol out of order or duplicated | refused |
| times partly with and partly without a zone; an invalid time | refused (simulators.stocks.sources) |
| a requested symbol without bars | refused |
| a price that is NaN, 0 or negative; a negative volume; high < low | refused; with `repair` the bar counts as missing |
| a bar that does not start on the grid of the session | refused |
| bars before the open or after the close, or on a holiday | dropped and counted; refused if they are the majority |
| an unadjusted split (simulators.stocks.splits) | refused; `adjust` removes it, `accept` leaves it |
| a missing bar | filled with the close before it, volume 0; marked in `filled` |
| bars missing for more than `maximum_gap_days` consecutive sessions | refused |
| a symbol that starts later than the others | first bars of all dropped; refused above `maximum_gap_days` |
| a bad tick (simulators.stocks.outliers) | noted; with `repair` the close before it, marked in `repaired` |
| a half day | marked in `half_day` |
| a symbol outside the pool on a day | marked in `member`: it may be held and sold, not bought |
| a symbol of the table of members without prices | noted: its returns are missing from every result |
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from podrace.errors import InvalidArgument
from simulators.stocks.bars import SECONDS_A_DAY, Array, Bars, Flags, Metadata, check_bars
from simulators.stocks.outliers import BadTick, find_bad_ticks, repair
from simulators.stocks.rows import PRICES, BuildOptions, checked_rows, time_text, where, without_adjusted_close
from simulators.stocks.sessions import NO_CALENDAR, Grid, Seconds, bar_length, data_grid, session_grid
from simulators.stocks.sources import NUMBERS, RawBars
from simulators.stocks.splits import Split, adjust_for_split, find_splits

_MOST_SHOWN = 5
"""Largest number of splits that a message lists."""


@dataclass(frozen=True)
class Panel:
    """Raw bars on the grid; NaN where a bar is missing."""

    tickers: tuple[str, ...]
    grid: Grid
    prices: list[Array]
    """open, high, low and close, each [bars, n]."""
    volume: Array


def build(raw: RawBars, options: BuildOptions) -> Bars:
    """Builds the arrays of a file from raw bars.

    Raises:
        InvalidArgument: As the table of this module says; the message names symbol and date.
        Unimplemented: exchange_calendars is not installed.
    """
    frame, notes = checked_rows(raw, options)
    frame, adjusted = without_adjusted_close(frame)
    panel, left_out = aligned(raw, frame, options)
    panel, taken_out = without_splits(raw.source, panel, options)
    panel, filled, gaps = filled_forward(raw.source, panel, options)
    ticks = find_bad_ticks(panel.prices[-1], filled, options.outlier_deviations)
    repaired = np.zeros(filled.shape, bool)
    if options.repair:
        prices, volume, repaired = repair(ticks, panel.prices, panel.volume)
        panel = replace(panel, prices=prices, volume=volume)
    member, absent = membership(panel, options)
    every_note = [*notes, *adjusted, *left_out, *taken_out, *gaps, *_notes(panel, ticks, options.repair), *absent]
    bars = _bars(raw, panel, options, filled, repaired, member, every_note)
    check_bars(raw.source, bars)
    return bars


# --- the grid ----------------------------------------------------------------------------------------------------


def aligned(raw: RawBars, frame: pd.DataFrame, options: BuildOptions) -> tuple[Panel, list[str]]:
    """Puts the bars on the grid of the sessions; NaN where one is missing."""
    grid = _grid(raw, frame, options)
    seconds = frame["seconds"].to_numpy()
    place = np.searchsorted(grid.key, seconds)
    on_grid = grid.key[np.minimum(place, len(grid.key) - 1)] == seconds
    _check_grid(raw, frame, grid, on_grid)
    tickers = options.symbols or tuple(sorted(set(frame["symbol"]) - {options.index}))
    tickers = (*tickers, options.index) if options.index else tickers
    kept, rows = frame[on_grid], place[on_grid]
    columns = pd.Index(tickers).get_indexer(kept["symbol"])
    panels = []
    for name in NUMBERS:
        panels.append(np.full((len(grid.key), len(tickers)), np.nan))
        panels[-1][rows, columns] = kept[name].to_numpy()
    dropped = len(frame) - len(kept)
    notes = [f"{dropped} bars outside the sessions of {options.calendar} dropped"] if dropped else []
    return Panel(tickers, grid, panels[:4], panels[4]), notes


def _grid(raw: RawBars, frame: pd.DataFrame, options: BuildOptions) -> Grid:
    seconds = frame["seconds"].to_numpy()
    if raw.daily:
        length = SECONDS_A_DAY
    else:
        length = options.bar_seconds or bar_length(frame["symbol"].to_numpy(object), seconds)
    if options.calendar == NO_CALENDAR:
        return data_grid(seconds, options.timezone, length)
    first, last = _dates(raw, seconds, options)
    return session_grid(options.calendar, first, last, length)


def _dates(raw: RawBars, seconds: Seconds, options: BuildOptions) -> list[np.datetime64]:
    """Returns the first and the last date of the data. An evening in New York has the next date in UTC."""
    ends = pd.to_datetime([int(seconds.min()), int(seconds.max())], unit="s", utc=True)
    local = ends if raw.daily else ends.tz_convert(options.timezone)
    return [np.datetime64(end.date(), "D") for end in local]


def _check_grid(raw: RawBars, frame: pd.DataFrame, grid: Grid, on_grid: Flags) -> None:
    """Refuses bars that are within a session but not on the grid, and data that is mostly outside of sessions."""
    if not raw.daily:
        seconds = frame["seconds"].to_numpy()
        session = np.searchsorted(grid.opening, seconds, side="right") - 1
        within = (session >= 0) & (seconds < grid.closing[session])
        # Bars in a lunch break are not on the grid either, but start at a multiple of the bar length.
        astray = within & ~on_grid & ((seconds - grid.opening[session]) % np.diff(grid.key).min() != 0)
        if astray.any():
            row = int(astray.argmax())
            raise InvalidArgument(
                f"{raw.source}: {where(raw, frame, row)}: the bar starts between two bars of the session; "
                "set --bar, or resample to bars of one length"
            )
    if on_grid.mean() < 0.5:
        raise InvalidArgument(
            f"{raw.source}: {len(on_grid) - int(on_grid.sum())} of {len(on_grid)} bars are outside the sessions: "
            "check --calendar and --timezone"
        )


# --- splits ------------------------------------------------------------------------------------------------------


def without_splits(source: str, panel: Panel, options: BuildOptions) -> tuple[Panel, list[str]]:
    """Removes known splits from the prices, and detects others, which are refused, removed or accepted.

    Raises:
        InvalidArgument: A split is of an unknown symbol, a price jump looks like a split and was not accepted, or an
            accepted one does not exist.
    """
    notes = []
    for split in options.splits:
        if split.symbol not in panel.tickers:
            raise InvalidArgument(f"splits: no bars of {split.symbol!r}")
        panel = _without(panel, split)
        notes.append(f"{split.symbol} {split.date}: split {split.ratio:g} of the table removed")
    every = _suspected(panel)
    unknown = [name for name in options.accept if name not in {split.name for split in every}]
    if unknown:
        looks = ", ".join(split.name for split in every[:_MOST_SHOWN]) or "none"
        raise InvalidArgument(f"--accept {unknown[0]}: no such price jump looks like a split (those that do: {looks})")
    suspected = [split for split in every if split.name not in options.accept]
    if suspected and not options.adjust:
        more = f" (and {len(suspected) - 1} more)" if len(suspected) > 1 else ""
        raise InvalidArgument(
            f"{source}: {suspected[0]}{more}; --adjust removes it, --accept {suspected[0].name} leaves it"
        )
    for split in suspected:
        panel = _without(panel, split)
        notes.append(f"{split}: removed")
    return panel, notes


def suspected_splits(bars: Bars) -> list[Split]:
    """Finds likely splits that remain in the arrays of a file."""
    opening = np.flatnonzero(np.append(True, bars.date[1:] != bars.date[:-1]))
    ending = np.append(opening[1:], len(bars.date)) - 1
    volume = np.add.reduceat(bars.volume, opening, axis=0)
    return find_splits(bars.tickers, bars.date[opening], bars.open[opening], bars.close[ending], volume)


def _suspected(panel: Panel) -> list[Split]:
    opening = np.flatnonzero(np.append(True, panel.grid.date[1:] != panel.grid.date[:-1]))
    day = np.cumsum(np.append(False, panel.grid.date[1:] != panel.grid.date[:-1]))
    # The first and last existing price of each day.
    by_day = pd.DataFrame(panel.prices[0]).groupby(day).first().to_numpy()
    last = pd.DataFrame(panel.prices[3]).groupby(day).last().to_numpy()
    volume = np.add.reduceat(np.nan_to_num(panel.volume), opening, axis=0)
    return find_splits(panel.tickers, panel.grid.date[opening], by_day, last, volume)


def _without(panel: Panel, split: Split) -> Panel:
    column = panel.tickers.index(split.symbol)
    prices, volume = adjust_for_split(split, column, panel.grid.date, panel.prices, panel.volume)
    return replace(panel, prices=prices, volume=volume)


# --- gaps --------------------------------------------------------------------------------------------------------


def filled_forward(source: str, panel: Panel, options: BuildOptions) -> tuple[Panel, Flags, list[str]]:
    """Fills missing bars with the close before them, and drops the first bars that not all symbols have.

    Returns:
        The panel without gaps, the filled bars [bars, n], and notes.
    """
    known = np.isfinite(panel.prices[3])
    first = _first_common_bar(source, panel, known, options)
    last_known = np.maximum.accumulate(np.where(known, np.arange(len(known))[:, None], 0), axis=0)
    before = np.take_along_axis(panel.prices[3], last_known, axis=0)
    # Filled before bars are dropped: a symbol that lacks the first bar that is kept has the close of a dropped one.
    panel = replace(panel, prices=[np.where(known, values, before) for values in panel.prices])
    panel, known = _from_row(panel, first), known[first:]
    _check_gaps(source, panel, known, options)
    notes = [f"the first {first} bars dropped: not every symbol has them"] if first else []
    missing = int((~known).sum())
    if missing:
        notes.append(f"{missing} of {known.size} bars missing: filled forward and marked")
    return replace(panel, volume=np.where(known, panel.volume, 0.0)), ~known, notes


def _first_common_bar(source: str, panel: Panel, known: Flags, options: BuildOptions) -> int:
    empty = ~known.any(0)
    if empty.any():
        raise InvalidArgument(f"{source}: {panel.tickers[int(empty.argmax())]} has no bar within the sessions")
    begins = known.argmax(0)
    column, row = int(begins.argmax()), int(begins.max())
    days = _days_between(panel.grid, 0, row)
    if days > options.maximum_gap_days:
        date = panel.grid.date[row]
        raise InvalidArgument(
            f"{source}: {panel.tickers[column]} starts on {date}, {days} sessions after the first: leave it out, or "
            f"start all symbols there (--start {date})"
        )
    return row


def _from_row(panel: Panel, row: int) -> Panel:
    grid = panel.grid
    cut = {name: getattr(grid, name)[row:] for name in ("time_utc_seconds", "key", "date", "half_day")}
    return replace(
        panel, grid=replace(grid, **cut), prices=[values[row:] for values in panel.prices], volume=panel.volume[row:]
    )


def _check_gaps(source: str, panel: Panel, known: Flags, options: BuildOptions) -> None:
    for column, ticker in enumerate(panel.tickers):
        rows = np.append(np.flatnonzero(known[:, column]), len(known))
        if (np.diff(rows) == 1).all():
            continue
        for begin, end in pairwise(rows.tolist()):
            # A gap at the end of the data is not followed by a bar.
            missing = _days_between(panel.grid, begin, min(end, len(known) - 1)) - (end < len(known))
            days = missing if end > begin + 1 else 0
            if days > options.maximum_gap_days:
                raise InvalidArgument(
                    f"{source}: {ticker} has no bar for {days} sessions after {panel.grid.date[begin]}: leave it out, "
                    "or raise --maximum-gap-days"
                )


def _days_between(grid: Grid, begin: int, end: int) -> int:
    """Counts the sessions after that of row `begin`, up to that of row `end`."""
    return len(np.unique(grid.date[begin : end + 1])) - 1


# --- membership of the pool --------------------------------------------------------------------------------------


def membership(panel: Panel, options: BuildOptions) -> tuple[Flags, list[str]]:
    """Returns which symbols belonged to the pool in each bar, as it was known then, [bars, n], and notes.

    Raises:
        InvalidArgument: A symbol of the data is not in the table of members.
    """
    count = len(panel.grid.date)
    if not options.members:
        return np.ones((count, len(panel.tickers)), bool), []
    named = {symbol for symbol, _, _ in options.members}
    for ticker in panel.tickers:
        if ticker not in named and ticker != options.index:
            raise InvalidArgument(f"members: {ticker} is not in the table: leave it out, or add its dates")
    member = np.zeros((count, len(panel.tickers)), bool)
    for symbol, begin, end in options.members:
        if symbol in panel.tickers:
            since = panel.grid.date >= _date(symbol, begin) if begin else np.ones(count, bool)
            until = panel.grid.date < _date(symbol, end) if end else np.ones(count, bool)
            member[:, panel.tickers.index(symbol)] |= since & until
    absent = sorted(named - set(panel.tickers))
    return member, [f"members without prices: {', '.join(absent)}"] if absent else []


def _date(symbol: str, text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "D")
    except ValueError as error:
        raise InvalidArgument(f"members: {symbol}: {text!r} is not a date (write 2010-01-31)") from error


# --- the result --------------------------------------------------------------------------------------------------


def describe_bad_ticks(tickers: Sequence[str], time_utc_seconds: Seconds, ticks: Sequence[BadTick]) -> list[str]:
    """Returns a line for each bad tick."""
    return [
        f"{tickers[tick.column]} {time_text(int(time_utc_seconds[tick.row]), False)}: suspected bad tick, "
        f"{tick.jump:+.1%} and back ({tick.deviations:.0f} deviations)"
        for tick in ticks
    ]


def _notes(panel: Panel, ticks: Sequence[BadTick], repaired: bool) -> list[str]:
    done = "replaced by the close before, marked" if repaired else "left as it is; --repair replaces it"
    return [f"{line}: {done}" for line in describe_bad_ticks(panel.tickers, panel.grid.time_utc_seconds, ticks)]


def _bars(
    raw: RawBars,
    panel: Panel,
    options: BuildOptions,
    filled: Flags,
    repaired: Flags,
    member: Flags,
    notes: Sequence[str],
) -> Bars:
    stocks = len(panel.tickers) - bool(options.index)
    lengths = np.diff(panel.grid.time_utc_seconds)
    bar_seconds = SECONDS_A_DAY if raw.daily else int(options.bar_seconds or lengths.min(initial=SECONDS_A_DAY))
    metadata = Metadata(
        calendar=options.calendar,
        timezone=options.timezone,
        bar_seconds=bar_seconds,
        source=raw.source,
        source_digest=raw.digest,
        index=options.index,
        notes=tuple(notes),
    )
    return Bars(
        **{name: values[:, :stocks] for name, values in zip(PRICES, panel.prices, strict=True)},
        volume=panel.volume[:, :stocks],
        filled=filled[:, :stocks],
        repaired=repaired[:, :stocks],
        member=member[:, :stocks],
        time_utc_seconds=panel.grid.time_utc_seconds,
        date=panel.grid.date,
        half_day=panel.grid.half_day,
        index_close=panel.prices[3][:, -1] if options.index else np.empty(0),
        tickers=panel.tickers[:stocks],
        metadata=metadata,
    )
