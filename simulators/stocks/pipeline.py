"""From raw bars to the arrays of a file: a chain of pure functions, each of which refuses, repairs and marks, or notes.

| what | what happens |
|---|---|
| bars of a symbol out of order, or one twice | refused |
| some times with a zone and some without; a time that is none | refused (simulators.stocks.sources) |
| a symbol that was asked for and is not there | refused |
| a price that is NaN, 0 or negative; a negative volume; high < low | refused; with `repair` the bar counts as missing |
| a bar that does not begin on the grid of the session | refused |
| bars before the open or after the close, or on a holiday | left out and counted; refused when they are the most |
| a split that was not taken out (simulators.stocks.splits) | refused; `adjust` takes it out, `accept` leaves it |
| a missing bar | the close before it, volume 0; marked in `filled` |
| bars missing for more than `maximum_gap_days` sessions on end | refused |
| a symbol that begins later than the others | the first bars of all are left out; refused from `maximum_gap_days` on |
| a bad tick (simulators.stocks.outliers) | noted; with `repair` the close before it, marked in `repaired` |
| a half day | marked in `half_day` |
| a symbol that is no member of the pool on a day | marked in `member`: it may be held and sold, not bought |
| a symbol of the table of members without prices | noted: what it would have earned is missing from every result |
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


@dataclass(frozen=True)
class Panel:
    """Raw bars on the grid; NaN where there is none."""

    tickers: tuple[str, ...]
    grid: Grid
    prices: list[Array]
    """open, high, low, close [bars, n]."""
    volume: Array


def build(raw: RawBars, options: BuildOptions) -> Bars:
    """Makes the arrays of a file from raw bars.

    Raises:
        InvalidArgument: As the table of this module says; a line that names symbol and date.
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
    told = [*notes, *adjusted, *left_out, *taken_out, *gaps, *_tell(panel, ticks, options.repair), *absent]
    bars = _bars(raw, panel, options, filled, repaired, member, told)
    check_bars(raw.source, bars)
    return bars


# --- the grid ----------------------------------------------------------------------------------------------------


def aligned(raw: RawBars, frame: pd.DataFrame, options: BuildOptions) -> tuple[Panel, list[str]]:
    """The bars on the grid of the sessions; NaN where one is missing."""
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
    notes = [f"{dropped} bars outside of the sessions of {options.calendar} left out"] if dropped else []
    return Panel(tickers, grid, panels[:4], panels[4]), notes


def _grid(raw: RawBars, frame: pd.DataFrame, options: BuildOptions) -> Grid:
    seconds = frame["seconds"].to_numpy()
    if raw.daily:
        length = SECONDS_A_DAY
    else:
        length = options.bar_seconds or bar_length(frame["symbol"].to_numpy(object), seconds)
    if options.calendar == NO_CALENDAR:
        return data_grid(seconds, options.timezone, length)
    first, last = (np.datetime64(int(end), "s").astype("datetime64[D]") for end in (seconds.min(), seconds.max()))
    return session_grid(options.calendar, first, last, length)


def _check_grid(raw: RawBars, frame: pd.DataFrame, grid: Grid, on_grid: Flags) -> None:
    """Refuses bars within a session that are not on the grid, and data that hardly ever is within a session."""
    if not raw.daily:
        seconds = frame["seconds"].to_numpy()
        session = np.searchsorted(grid.opening, seconds, side="right") - 1
        within = (session >= 0) & (seconds < grid.closing[session])
        # During a lunch break nothing is on the grid either.
        astray = within & ~on_grid & ((seconds - grid.opening[session]) % np.diff(grid.key).min() != 0)
        if astray.any():
            row = int(astray.argmax())
            raise InvalidArgument(
                f"{raw.source}: {where(raw, frame, row)}: the bar begins between two bars of the session; "
                "give --bar, or make bars of one length"
            )
    if on_grid.mean() < 0.5:
        raise InvalidArgument(
            f"{raw.source}: {len(on_grid) - int(on_grid.sum())} of {len(on_grid)} bars lie outside of the sessions: "
            "is it another --calendar, or another --timezone?"
        )


# --- splits ------------------------------------------------------------------------------------------------------


def without_splits(source: str, panel: Panel, options: BuildOptions) -> tuple[Panel, list[str]]:
    """Takes known splits out of the prices, and finds others, which are refused, taken out or accepted."""
    notes = []
    for split in options.splits:
        if split.symbol not in panel.tickers:
            raise InvalidArgument(f"splits: there are no bars of {split.symbol!r}")
        panel = _without(panel, split)
        notes.append(f"{split.symbol} {split.date}: split {split.ratio:g} taken out, as the table says")
    suspected = [split for split in _suspected(panel) if split.name not in options.accept]
    if suspected and not options.adjust:
        more = f" (and {len(suspected) - 1} more)" if len(suspected) > 1 else ""
        raise InvalidArgument(
            f"{source}: {suspected[0]}{more}; --adjust takes it out, --accept {suspected[0].name} leaves it"
        )
    for split in suspected:
        panel = _without(panel, split)
        notes.append(f"{split}: taken out")
    return panel, notes


def suspected_splits(bars: Bars) -> list[Split]:
    """Splits that seem to be left in the arrays of a file."""
    opening = np.flatnonzero(np.append(True, bars.date[1:] != bars.date[:-1]))
    ending = np.append(opening[1:], len(bars.date)) - 1
    volume = np.add.reduceat(bars.volume, opening, axis=0)
    return find_splits(bars.tickers, bars.date[opening], bars.open[opening], bars.close[ending], volume)


def _suspected(panel: Panel) -> list[Split]:
    opening = np.flatnonzero(np.append(True, panel.grid.date[1:] != panel.grid.date[:-1]))
    day = np.cumsum(np.append(False, panel.grid.date[1:] != panel.grid.date[:-1]))
    # The first and the last price of a day that there is.
    by_day = pd.DataFrame(panel.prices[0]).groupby(day).first().to_numpy()
    last = pd.DataFrame(panel.prices[3]).groupby(day).last().to_numpy()
    volume = np.add.reduceat(np.nan_to_num(panel.volume), opening, axis=0)
    return find_splits(panel.tickers, panel.grid.date[opening], by_day, last, volume)


def _without(panel: Panel, split: Split) -> Panel:
    column = panel.tickers.index(split.symbol)
    prices, volume = adjust_for_split(split, column, panel.grid.date, panel.prices, panel.volume)
    return replace(panel, prices=prices, volume=volume)


# --- what is missing ---------------------------------------------------------------------------------------------


def filled_forward(source: str, panel: Panel, options: BuildOptions) -> tuple[Panel, Flags, list[str]]:
    """Puts the close before it where a bar is missing, and leaves out the first bars that not all symbols have.

    Returns:
        The panel without a gap, where it was filled [bars, n], and notes.
    """
    known = np.isfinite(panel.prices[3])
    first = _first_common_bar(source, panel, known, options)
    panel, known = _from_row(panel, first), known[first:]
    _check_gaps(source, panel, known, options)
    last_known = np.maximum.accumulate(np.where(known, np.arange(len(known))[:, None], 0), axis=0)
    before = np.take_along_axis(panel.prices[3], last_known, axis=0)
    prices = [np.where(known, values, before) for values in panel.prices]
    notes = [f"the first {first} bars left out: not every symbol has them"] if first else []
    missing = int((~known).sum())
    if missing:
        notes.append(f"{missing} of {known.size} bars missing: filled forward and marked")
    return replace(panel, prices=prices, volume=np.where(known, panel.volume, 0.0)), ~known, notes


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
            f"{source}: {panel.tickers[column]} begins on {date}, {days} sessions after the first: leave it out, or "
            f"let all begin there (--start {date})"
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
            # At the end of the data there is no bar that ends the gap.
            missing = _days_between(panel.grid, begin, min(end, len(known) - 1)) - (end < len(known))
            days = missing if end > begin + 1 else 0
            if days > options.maximum_gap_days:
                raise InvalidArgument(
                    f"{source}: {ticker} has no bar for {days} sessions after {panel.grid.date[begin]}: leave it out, "
                    "or raise --maximum-gap-days"
                )


def _days_between(grid: Grid, begin: int, end: int) -> int:
    """Sessions that end after the one of row `begin`, up to that of row `end`."""
    return len(np.unique(grid.date[begin : end + 1])) - 1


# --- who belongs to the pool -------------------------------------------------------------------------------------


def membership(panel: Panel, options: BuildOptions) -> tuple[Flags, list[str]]:
    """Who belongs to the pool in which bar, as it was known then, [bars, n]."""
    count = len(panel.grid.date)
    if not options.members:
        return np.ones((count, len(panel.tickers)), bool), []
    named = {symbol for symbol, _, _ in options.members}
    for ticker in panel.tickers:
        if ticker not in named and ticker != options.index:
            raise InvalidArgument(f"members: {ticker} is not in the table: leave it out, or say from when to when")
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
        raise InvalidArgument(f"members: {symbol}: {text!r} is no date (write 2010-01-31)") from error


# --- the result --------------------------------------------------------------------------------------------------


def tell_bad_ticks(tickers: Sequence[str], time_utc_seconds: Seconds, ticks: Sequence[BadTick]) -> list[str]:
    """A line for each bad tick."""
    return [
        f"{tickers[tick.column]} {time_text(int(time_utc_seconds[tick.row]), False)}: suspected bad tick, "
        f"{tick.jump:+.1%} and back ({tick.deviations:.0f} deviations)"
        for tick in ticks
    ]


def _tell(panel: Panel, ticks: Sequence[BadTick], repaired: bool) -> list[str]:
    done = "the close before stands for it, marked" if repaired else "left as it is; --repair puts the close before"
    return [f"{line}: {done}" for line in tell_bad_ticks(panel.tickers, panel.grid.time_utc_seconds, ticks)]


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
