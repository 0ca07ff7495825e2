"""Reads raw bars from files, folders or services; parses columns and times. The bars are checked elsewhere.

A file (CSV or Parquet) has a column of times (time, timestamp, datetime or date), symbol (or ticker), open, high, low,
close, volume and, optionally, adj_close. In a folder every file is a symbol, named after the file unless it has a
column symbol. `yfinance:AAPL,MSFT` and `alpaca:AAPL,MSFT` query a service, whose package is imported only then.
"""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from podrace.errors import InvalidArgument, NotFound, Unavailable, Unimplemented

TIME_COLUMNS = ("time", "timestamp", "datetime", "date")
NUMBERS = ("open", "high", "low", "close", "volume")
_ZONE = re.compile(r"\d{1,2}:\d{2}.*(?:Z|[+-]\d{2}:?\d{2})$")
_EPOCH_UNITS = ((1e11, "s"), (1e14, "ms"), (1e17, "us"), (np.inf, "ns"))
"""Units of numeric times: the unit of the first limit that exceeds the number."""


@dataclass(frozen=True)
class RawBars:
    """Bars as they were read, one per row."""

    frame: pd.DataFrame
    """Columns: symbol; seconds, int64: start of the bar in Unix seconds (daily: midnight UTC of the date); open, high,
    low, close, volume and optionally adj_close, float64, NaN where the source had no number."""
    daily: bool
    source: str
    digest: str
    """SHA-256 of what was read."""


@dataclass(frozen=True)
class Query:
    """A query to a service."""

    symbols: tuple[str, ...]
    start: str
    """ISO date of the first day."""
    end: str
    """ISO date of the day after the last one."""
    bar_minutes: int
    """Length of a bar; 0: a day."""


def read_source(source: str, *, timezone: str, start: str = "", end: str = "", bar_minutes: int = 0) -> RawBars:
    """Reads raw bars.

    Args:
        source: File, folder, or `yfinance:` or `alpaca:` followed by symbols.
        timezone: IANA name of the zone of times without a zone, and of the days.
        start: Services only: ISO date of the first day.
        end: Services only: ISO date of the day after the last one.
        bar_minutes: Services only: length of a bar; 0: a day.

    Raises:
        InvalidArgument: The source does not contain valid bars; the message says where.
        NotFound: The file does not exist.
        Unavailable: The service does not answer.
        Unimplemented: A package is missing.
    """
    service, separator, symbols = source.partition(":")
    if separator and service in _SERVICES:
        query = Query(tuple(filter(None, symbols.split(","))), start, end, bar_minutes)
        if not (query.symbols and start and end):
            raise InvalidArgument(f"{source}: a service needs symbols ({service}:AAPL,MSFT), --start and --end")
        frame = _asked(service, query)
        digest = hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
    else:
        frame, digest = _read_files(Path(source))
    return _dated(source, digest, _named(source, frame), timezone)


# --- files -------------------------------------------------------------------------------------------------------


def _read_files(path: Path) -> tuple[pd.DataFrame, str]:
    if not path.exists():
        raise NotFound(f"{path}: no such file or folder")
    files = sorted(each for each in path.iterdir() if each.suffix in (".csv", ".parquet")) if path.is_dir() else [path]
    if not files:
        raise InvalidArgument(f"{path}: the folder has no .csv or .parquet file")
    digest, frames = hashlib.sha256(), []
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
        frame = _read_file(file)
        frames.append(frame if "symbol" in frame or not path.is_dir() else frame.assign(symbol=file.stem))
    return pd.concat(frames, ignore_index=True), digest.hexdigest()


def _read_file(file: Path) -> pd.DataFrame:
    try:
        # Read as text, so that the symbol NA is not read as missing.
        frame = (
            pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file, dtype=str, keep_default_na=False)
        )
    except ImportError as error:
        raise Unimplemented(f"{file}: reading Parquet needs pyarrow: pip install pyarrow, or use CSV") from error
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    return with_plain_names(str(file), frame)


def with_plain_names(source: str, frame: pd.DataFrame, symbol: str = "symbol") -> pd.DataFrame:
    """Renames columns to the names that are used here: `Adj Close` becomes adj_close.

    Args:
        source: Origin of the table, for error messages.
        frame: The table.
        symbol: New name of a column `ticker`.

    Raises:
        InvalidArgument: A column that is used appears twice.
    """
    # pandas renames the second column `close` of a CSV file to `close.1`.
    written = [re.sub(r"\.\d+$", "", str(name)) for name in frame.columns]
    names = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in written]
    names = [symbol if name == "ticker" else name for name in names]
    twice = [name for name in (symbol, *TIME_COLUMNS, *NUMBERS, "adj_close") if names.count(name) > 1]
    if twice:
        raise InvalidArgument(f"{source}: the column {twice[0]} appears twice; keep one of them")
    return frame.set_axis(names, axis=1)


# --- services ----------------------------------------------------------------------------------------------------


def _asked(service: str, query: Query) -> pd.DataFrame:
    try:
        frame = _SERVICES[service](query)
    except ImportError as error:
        raise Unimplemented(
            f"{service}: package {error.name!r} is missing: pip install 'podrace[{service}]'"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(f"{service} did not return the bars: {' '.join(str(error).split())}") from error
    missing = [symbol for symbol in query.symbols if frame.empty or symbol not in set(frame["symbol"])]
    if missing:
        raise InvalidArgument(f"{service}: no bars of {', '.join(missing)} from {query.start} to {query.end}")
    return frame


def _ask_yfinance(query: Query) -> pd.DataFrame:
    import yfinance

    interval = f"{query.bar_minutes}m" if query.bar_minutes else "1d"
    table = yfinance.download(
        list(query.symbols),
        start=query.start,
        end=query.end,
        interval=interval,
        auto_adjust=False,
        group_by="ticker",
        progress=False,
        threads=False,
    )
    if table is None or table.empty:
        return pd.DataFrame(columns=["symbol"])
    frames = [
        with_plain_names(symbol, table[symbol].dropna(how="all").rename_axis("time").reset_index()).assign(
            symbol=symbol
        )
        for symbol in query.symbols
        if symbol in table.columns.get_level_values(0)
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["symbol"])


def _ask_alpaca(query: Query) -> pd.DataFrame:
    from alpaca.data.enums import Adjustment
    from alpaca.data.historical import StockHistoricalDataClient
    from alpaca.data.requests import StockBarsRequest
    from alpaca.data.timeframe import TimeFrame, TimeFrameUnit

    names = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"
    key, secret = (os.environ.get(name, "") for name in names)
    if not (key and secret):
        raise InvalidArgument(f"alpaca: set {names[0]} and {names[1]} in the environment")
    length = TimeFrame(query.bar_minutes, TimeFrameUnit.Minute) if query.bar_minutes else TimeFrame.Day
    request = StockBarsRequest(
        symbol_or_symbols=list(query.symbols),
        timeframe=length,
        start=pd.Timestamp(query.start).to_pydatetime(),
        end=pd.Timestamp(query.end).to_pydatetime(),
        adjustment=Adjustment.ALL,
    )
    table = StockHistoricalDataClient(key, secret).get_stock_bars(request).df
    return pd.DataFrame(columns=["symbol"]) if table.empty else with_plain_names("alpaca", table.reset_index())


_SERVICES: dict[str, Callable[[Query], pd.DataFrame]] = {"yfinance": _ask_yfinance, "alpaca": _ask_alpaca}


# --- columns and times -------------------------------------------------------------------------------------------


def _named(source: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Checks that all columns are present, and converts numbers."""
    if frame.empty:
        raise InvalidArgument(f"{source}: has no rows")
    times = [name for name in TIME_COLUMNS if name in frame]
    missing = [name for name in ("symbol", *NUMBERS) if name not in frame] + ([] if times else ["time"])
    if missing:
        found = ", ".join(map(str, frame.columns))
        raise InvalidArgument(f"{source}: columns missing: {', '.join(missing)} (found: {found})")
    symbols = frame["symbol"].astype(object).where(frame["symbol"].notna(), "").astype(str)
    if (symbols == "").any():
        row = int((symbols == "").to_numpy().argmax())
        raise InvalidArgument(f"{source}: row {row + 1}: the symbol is missing")
    present = [name for name in (*NUMBERS, "adj_close") if name in frame]
    numbers = {name: pd.to_numeric(frame[name], errors="coerce").astype(np.float64) for name in present}
    return pd.DataFrame({"symbol": symbols, "time": frame[times[0]], **numbers})


def _dated(source: str, digest: str, frame: pd.DataFrame, timezone: str) -> RawBars:
    """Replaces times by Unix seconds, and detects whether the bars are daily."""
    times = _utc(source, frame["symbol"], frame["time"], timezone)
    days = None
    for zone in (timezone, "UTC"):
        local = times.dt.tz_convert(zone)
        if (local == local.dt.normalize()).all():
            days = local.dt.tz_localize(None)
            break
    seconds = (times.dt.tz_localize(None) if days is None else days).astype("datetime64[s]").astype(np.int64)
    return RawBars(frame.drop(columns="time").assign(seconds=seconds), days is not None, source, digest)


def _utc(source: str, symbols: pd.Series, written: pd.Series, timezone: str) -> pd.Series:
    if isinstance(written.dtype, pd.DatetimeTZDtype):
        return written.dt.tz_convert("UTC")
    if written.dtype.kind == "M":
        return _localized(source, symbols, written, written, timezone)
    texts = written.astype(str).str.strip()
    numbers = pd.to_numeric(texts, errors="coerce")
    # Eight digits are a date, such as 20200102.
    if numbers.notna().all() and (texts.str.len() > 8).all():
        unit = next(unit for limit, unit in _EPOCH_UNITS if numbers.abs().max() < limit)
        return pd.to_datetime(numbers.astype(np.int64), unit=unit, utc=True)
    zoned = texts.str.contains(_ZONE).to_numpy()
    if zoned.any() and not zoned.all():
        row = int((~zoned).argmax())
        raise InvalidArgument(f"{source}: {symbols[row]} {texts[row]}: the time has no zone, but others have one")
    parsed = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=bool(zoned.any()))
    _check_times(source, symbols, texts, parsed, "is not a time (write 2010-01-31 or 2010-01-31T09:30:00-05:00)")
    return parsed if zoned.any() else _localized(source, symbols, texts, parsed, timezone)


def _localized(source: str, symbols: pd.Series, texts: pd.Series, naive: pd.Series, timezone: str) -> pd.Series:
    local: Any = naive.dt.tz_localize(timezone, ambiguous="NaT", nonexistent="NaT")
    _check_times(source, symbols, texts, local, f"does not exist, or exists twice, in {timezone}: add the UTC offset")
    return local.dt.tz_convert("UTC")


def _check_times(source: str, symbols: pd.Series, texts: pd.Series, parsed: pd.Series, fault: str) -> None:
    refused = parsed.isna().to_numpy()
    if refused.any():
        row = int(refused.argmax())
        raise InvalidArgument(f"{source}: {symbols[row]}: {str(texts[row])!r} {fault}")
