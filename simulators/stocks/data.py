"""Loads prices: reads, checks, adjusts and aligns them, and cuts them into splits; independent of trading.

Array files (simulators.stocks.bars) are already checked and aligned, and so are synthetic prices
(simulators.stocks.synthetic). A file of daily prices (CSV or Parquet) has the columns date, ticker, high, low, close
and, optionally, adj_close, which may also be written `Adj Close`. Other columns (open, volume) are ignored, because the
state does not use them. With adj_close, the prices of a day are multiplied by adj_close / close, which removes splits
and dividends from the returns.

Errors name rows and columns and never quote what a file contains: a user who can read the error of a tournament may not
be allowed to read the file.
"""

import lzma
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from podrace.errors import InvalidArgument, Unimplemented
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.files import open_data
from simulators.options import closest
from simulators.stocks.bars import Array, Bars, Flags, read_bars
from simulators.stocks.folds import LEAST_ROWS
from simulators.stocks.options import SPLITS, StockOptions
from simulators.stocks.sources import with_plain_names
from simulators.stocks.synthetic import is_synthetic, synthesize

BUILT_IN = "built-in prices"
BUILT_IN_TICKERS = ("AAPL", "GOOG", "IBM", "MSFT")
_PRICE_COLUMNS = ("high", "low", "close")
_BOUNDARIES = ("train_start", "train_end", "validation_end", "backtest_end")
_REQUIRED_COLUMNS = ("date", "ticker", *_PRICE_COLUMNS)
_KNOWN_COLUMNS = (*_REQUIRED_COLUMNS, "adj_close", "open", "volume")
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zip": "zip", ".xz": "xz"}


EARLIEST_DATE, LATEST_DATE = pd.Timestamp("1700-01-01"), pd.Timestamp("2200-12-31")
"""Dates of prices are between these; others are errors of the file, and dates in nanoseconds cannot hold them."""


@dataclass(frozen=True)
class Prices:
    """Adjusted prices of stocks: daily prices of the days on which all were traded, or shorter bars."""

    dates: NDArray[np.datetime64]
    """[rows] datetime64[D], ascending; all bars of a day have the same date."""
    tickers: tuple[str, ...]
    high: Array
    """[rows, n], like the next two; n is the number of tickers."""
    low: Array
    close: Array
    filled: Flags | None = None
    """[rows, n]: the bar had no trades, its prices are the close before it; None when there are no such bars."""
    member: Flags | None = None
    """[rows, n]: the stock belongs to the pool; None when all always do."""
    index_close: Array | None = None
    """[rows]: closes of an index fund, for comparison; None when the data has none."""
    bars_a_day: int = 1
    """Bars of a full day; 1: a row is a day."""

    def until(self, row: int) -> "Prices":
        """Returns the rows before `row`, which are all that is known before that row."""
        return self.between(0, row)

    def between(self, start: int, stop: int) -> "Prices":
        """Returns the rows from `start` to `stop`, without the latter."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        cut = {name: value[start:stop] for name, value in values.items() if isinstance(value, np.ndarray)}
        return Prices(**{**values, **cut})

    @property
    def day_ends(self) -> NDArray[np.int64]:
        """[days] the last row of each day."""
        return np.flatnonzero(np.append(self.dates[1:] != self.dates[:-1], True))


def load_prices(path: str = "", tickers: Sequence[str] = (), allowed: Allowed = EVERYTHING) -> Prices:
    """Loads prices.

    Args:
        path: An array file (.npz), a CSV or Parquet file, `synthetic:...`, or '' for the built-in prices: AAPL, GOOG,
            IBM and MSFT from GOOG's first day, 2004-08-19, to 2013-03-01 (Quandl WIKI, public domain, as packaged by
            bokeh_sampledata).
        tickers: Stocks to keep, in this order. Empty: all of them, in the order of an array file, else of their names.
        allowed: Which files and URLs may be read.

    Raises:
        InvalidArgument: The file is not allowed, missing or malformed; the message names the row.
        PodraceError: It is at a URL and cannot be fetched.
        Unimplemented: Parquet needs pyarrow, which is not installed.
    """
    if is_synthetic(path):
        return prices_of_bars(path, synthesize(path), tickers)
    if PurePosixPath(urlsplit(path).path if "://" in path else path).suffix == ".npz":
        return prices_of_bars(path, read_bars(path, allowed), tickers)
    source = path or BUILT_IN
    frame = _read(path, allowed) if path else _built_in()
    frame = _select(source, frame, tickers)
    frame["date"] = _dates(source, frame)
    for column in _price_columns(frame):
        frame[column] = _positive_prices(source, frame, column)
    _check_order(source, frame)
    return _align(source, _adjust(frame), tuple(tickers) or tuple(sorted(frame["ticker"].unique())))


def prices_of_bars(source: str, bars: Bars, tickers: Sequence[str] = ()) -> Prices:
    """Converts the bars of an array file to prices.

    Args:
        source: Origin of the bars, for error messages.
        bars: The bars.
        tickers: Stocks to keep, in this order; all of them when empty.

    Raises:
        InvalidArgument: A ticker is unknown or named twice.
    """
    _check_tickers(source, tickers, bars.tickers, listed=is_synthetic(source))
    kept = [bars.tickers.index(ticker) for ticker in tickers or bars.tickers]
    untraded, member = (bars.filled | bars.repaired)[:, kept], bars.member[:, kept]
    return Prices(
        dates=bars.date,
        tickers=tuple(bars.tickers[column] for column in kept),
        high=bars.high[:, kept],
        low=bars.low[:, kept],
        close=bars.close[:, kept],
        filled=untraded if untraded.any() else None,
        member=None if member.all() else member,
        index_close=bars.index_close if len(bars.index_close) else None,
        bars_a_day=1 if bars.daily else int(np.unique(bars.date, return_counts=True)[1].max()),
    )


def _built_in() -> pd.DataFrame:
    from bokeh_sampledata import stocks  # imported late: it parses all of its files on import

    return pd.concat(
        [pd.DataFrame(getattr(stocks, ticker)).assign(ticker=ticker) for ticker in BUILT_IN_TICKERS], ignore_index=True
    )


def _read(path: str, allowed: Allowed) -> pd.DataFrame:
    name = PurePosixPath(urlsplit(path).path if "://" in path else path)
    try:
        with open_data(path, allowed) as file:
            # Read as text: then the ticker NA is not read as missing.
            frame = (
                pd.read_parquet(file)
                if name.suffix == ".parquet"
                else pd.read_csv(file, dtype=str, keep_default_na=False, compression=_COMPRESSIONS.get(name.suffix))
            )
    except InvalidArgument as error:
        raise InvalidArgument(f"option 'path': {error.message}") from None
    except ImportError as error:
        raise Unimplemented(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or use CSV") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        # The text of the error may quote the file.
        raise InvalidArgument(
            f"option 'path': {path} cannot be read as a table of prices ({type(error).__name__})"
        ) from None
    frame = with_plain_names(path, frame.reset_index(drop=True), symbol="ticker")
    missing = [column for column in _REQUIRED_COLUMNS if column not in frame]
    if missing:
        known = [column for column in _KNOWN_COLUMNS if column in frame]
        others = f"{len(frame.columns) - len(known)} others"
        raise InvalidArgument(f"{path}: columns missing: {', '.join(missing)} (found: {', '.join([*known, others])})")
    if frame.empty:
        raise InvalidArgument(f"{path}: has no rows")
    unnamed = (frame["ticker"].isna() | (frame["ticker"] == "")).to_numpy()
    if unnamed.any():
        raise InvalidArgument(f"{path}: {_where(int(unnamed.argmax()))} has no ticker")
    return frame


def _select(source: str, frame: pd.DataFrame, tickers: Sequence[str]) -> pd.DataFrame:
    """Keeps the rows of some stocks; the index of the frame remains the number of a row in the file."""
    _check_tickers(source, tickers, sorted(frame["ticker"].unique()), listed=source == BUILT_IN)
    return frame[frame["ticker"].isin(tickers)].copy() if tickers else frame


def _check_tickers(source: str, tickers: Sequence[str], known: Sequence[str], *, listed: bool) -> None:
    """Refuses unknown tickers; lists the known ones if they do not come from a file."""
    for ticker in tickers:
        if ticker not in known:
            hint = f"{closest(ticker, known)} (known: {', '.join(known)})" if listed else ""
            raise InvalidArgument(f"{source}: no prices of {ticker!r}{hint}")
    if len(set(tickers)) != len(tickers):
        raise InvalidArgument(f"option 'tickers' names a stock twice: {', '.join(tickers)}")


def _price_columns(frame: pd.DataFrame) -> list[str]:
    return [column for column in (*_PRICE_COLUMNS, "adj_close") if column in frame]


def _dates(source: str, frame: pd.DataFrame) -> pd.Series:
    # The date as written: a time of day or a zone after it must not change it.
    dates = pd.to_datetime(frame["date"].astype(str).str.slice(0, 10), errors="coerce", format="ISO8601")
    # NaT is not between any two dates.
    refused = ~dates.between(EARLIEST_DATE, LATEST_DATE)
    if refused.any():
        row = frame.index[int(refused.to_numpy().argmax())]
        raise InvalidArgument(f"{source}: {_where(row)}: the date is not one (write 2010-01-31)")
    return dates


def _positive_prices(source: str, frame: pd.DataFrame, column: str) -> pd.Series:
    prices = pd.to_numeric(frame[column], errors="coerce")
    refused = ~(np.isfinite(prices) & (prices > 0))
    if refused.any():
        row = frame.index[int(refused.to_numpy().argmax())]
        raise InvalidArgument(f"{source}: {_where(row)}: {column} is not a positive number")
    return prices.astype(np.float64)


def _check_order(source: str, frame: pd.DataFrame) -> None:
    """Refuses a ticker whose rows are not in ascending order of dates: that indicates an error in the file."""
    step = frame.groupby("ticker")["date"].diff().dt.days
    refused = (step <= 0).to_numpy()
    if refused.any():
        row = frame.index[int(refused.argmax())]
        twice = "the date appears twice (intraday bars? make an array file: podrace data build)"
        fault = twice if step[row] == 0 else "the date follows a later one; sort by date"
        raise InvalidArgument(f"{source}: {_where(row)}: {fault}")


def _where(row: int) -> str:
    """Returns where a row is, for a message; in a CSV file it is in the line after that number."""
    return f"row {row + 1} after the header"


def _adjust(frame: pd.DataFrame) -> pd.DataFrame:
    if "adj_close" not in frame:
        return frame
    factor = frame["adj_close"] / frame["close"]
    return frame.assign(**{column: frame[column] * factor for column in _PRICE_COLUMNS})


def _align(source: str, frame: pd.DataFrame, tickers: tuple[str, ...]) -> Prices:
    """Keeps the days on which every ticker has prices."""
    table = frame.pivot(index="date", columns="ticker", values=list(_PRICE_COLUMNS)).dropna().sort_index()
    if table.empty:
        raise InvalidArgument(f"{source}: no day has prices of all of {', '.join(tickers)}")
    high, low, close = (table[column][list(tickers)].to_numpy(np.float64) for column in _PRICE_COLUMNS)
    return Prices(table.index.to_numpy().astype("datetime64[D]"), tickers, high, low, close)


def split_rows(
    dates: NDArray[np.datetime64], options: StockOptions, history: int, bars_a_day: int = 1
) -> tuple[int, range]:
    """Finds the rows of a split that is one period.

    Args:
        dates: [rows] datetime64[D], ascending; bars of one day share theirs.
        options: Select the split and its dates.
        history: Rows required before the first row of training.
        bars_a_day: Rows of a full day.

    Returns:
        The first row of training, and the rows of the split.

    Raises:
        InvalidArgument: A date is malformed or the dates are out of order, or the split has too few rows.
    """
    boundaries = split_boundaries(dates, options, history, bars_a_day)
    index = SPLITS.index(options.split)
    rows = range(boundaries[index], boundaries[index + 1])
    check_length(f"split {options.split!r}", rows, dates, options, bars_a_day)
    return boundaries[0], rows


def check_length(
    name: str, rows: range, dates: NDArray[np.datetime64], options: StockOptions, bars_a_day: int = 1
) -> None:
    """Refuses rows that are too few for an episode; raises InvalidArgument, which calls them `name`."""
    needed = options.episode_days * bars_a_day or LEAST_ROWS
    if len(rows) < needed:
        raise InvalidArgument(
            f"{name} has {len(rows)} of the {needed} {_unit(bars_a_day)} that an episode needs; prices range from "
            f"{dates[0]} to {dates[-1]}: set train_start < train_end < validation_end < backtest_end within them"
        )


def split_boundaries(
    dates: NDArray[np.datetime64], options: StockOptions, history: int, bars_a_day: int = 1
) -> list[int]:
    """Returns the rows at which training, validation and backtest begin, and the row after the backtest.

    Arguments and errors are those of `split_rows`.
    """
    defaults = (history, len(dates), len(dates), len(dates))
    boundaries = [
        _row(dates, name, getattr(options, name), default) for name, default in zip(_BOUNDARIES, defaults, strict=True)
    ]
    if sorted(boundaries) != boundaries:
        written = ", ".join(f"{name} = {getattr(options, name) or 'none'}" for name in _BOUNDARIES)
        raise InvalidArgument(f"the dates of the splits are not in this order: {written}")
    if boundaries[0] < history:
        first = dates[history] if history < len(dates) else "none"
        raise InvalidArgument(
            f"option 'train_start': {options.train_start} has {boundaries[0]} {_unit(bars_a_day)} of prices before it, "
            f"the indicators need {history} (first possible: {first})"
        )
    return boundaries


def _unit(bars_a_day: int) -> str:
    return "days" if bars_a_day == 1 else "bars"


def _row(dates: NDArray[np.datetime64], name: str, text: str, default: int) -> int:
    """Returns the row of the first day at or after a date."""
    if not text:
        return default
    try:
        return int(np.searchsorted(dates, np.datetime64(date.fromisoformat(text))))
    except ValueError as error:
        raise InvalidArgument(f"option {name!r}: {text!r} is not a date (write 2010-01-31)") from error
