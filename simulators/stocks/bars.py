"""Reads and writes the array file: bars of many symbols as aligned arrays, replaced atomically.

One npz file holds everything and can be read with numpy alone:

| array | shape, dtype | meaning |
|---|---|---|
| `open` `high` `low` `close` `volume` | (bars, n) float64 | money; shares traded; adjusted as `metadata` says |
| `filled` | (bars, n) bool | the bar was missing: its prices are the close before it, its volume 0 |
| `repaired` | (bars, n) bool | the bar was a bad tick, and was replaced in the same way |
| `member` | (bars, n) bool | the symbol belonged to the pool on that day |
| `time_utc_seconds` | (bars,) int64 | start of the bar, Unix seconds |
| `date` | (bars,) datetime64[D] | trading day, in the exchange's own time zone |
| `half_day` | (bars,) bool | the exchange closed early on that day |
| `index_close` | (bars,) float64 | an index fund for comparison; size 0 when there is none |
| `tickers` | (n,) str | names |
| `metadata` | () str | JSON: see Metadata |
"""

import dataclasses
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.files import open_data

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
SECONDS_A_DAY = 86_400
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Metadata:
    """Origin of the bars, and what was done to them."""

    calendar: str
    """Name of the exchange's calendar in exchange_calendars; 'none' if the trading days were taken from the data."""
    timezone: str
    """IANA name of the exchange's time zone."""
    bar_seconds: int
    """Length of a bar; 86,400 for daily bars."""
    source: str
    """The source, as the user wrote it."""
    source_digest: str
    """SHA-256 of the bytes (of files) or values (of a service) that were read."""
    index: str = ""
    """Name of the index fund; empty when there is none."""
    notes: tuple[str, ...] = ()
    """What was adjusted, repaired or left out, one line each."""
    version: int = VERSION


@dataclasses.dataclass(frozen=True)
class Bars:
    """The arrays of a file; see the module docstring for shapes, dtypes and meanings."""

    open: Array
    high: Array
    low: Array
    close: Array
    volume: Array
    filled: Flags
    repaired: Flags
    member: Flags
    time_utc_seconds: NDArray[np.int64]
    date: NDArray[np.datetime64]
    half_day: Flags
    index_close: Array
    tickers: tuple[str, ...]
    metadata: Metadata

    @property
    def daily(self) -> bool:
        """Whether a bar is a whole trading day."""
        return self.metadata.bar_seconds >= SECONDS_A_DAY


_PANELS: Mapping[str, str] = {
    **dict.fromkeys(("open", "high", "low", "close", "volume"), "float64"),
    **dict.fromkeys(("filled", "repaired", "member"), "bool"),
}
_SERIES = {"time_utc_seconds": "int64", "date": "datetime64[D]", "half_day": "bool", "index_close": "float64"}


def write_bars(path: str, bars: Bars) -> None:
    """Writes an array file next to its target and renames it: readers see the whole new file or the previous one.

    The same bars give the same bytes.

    Raises:
        InvalidArgument: The file cannot be written.
    """
    arrays = {name: getattr(bars, name) for name in (*_PANELS, *_SERIES)}
    metadata = json.dumps(dataclasses.asdict(bars.metadata), sort_keys=True)
    incoming = Path(f"{path}.incoming")
    try:
        with incoming.open("wb") as file:
            np.savez_compressed(file, **arrays, tickers=np.array(bars.tickers), metadata=np.array(metadata))
            file.flush()
            os.fsync(file.fileno())
        incoming.replace(path)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from error


def read_bars(path: str, allowed: Allowed = EVERYTHING) -> Bars:
    """Reads an array file and checks it.

    Args:
        path: The file.
        allowed: Which files may be read.

    Raises:
        InvalidArgument: The file is not allowed or is not an array file, an array is missing or has a wrong shape, or a
            value is impossible; the message names the array, and quotes nothing of the file.
        PodraceError: It is at a URL and cannot be fetched.
    """
    try:
        # Checked first: numpy takes anything but an archive for pickled objects, and its error explains how to run
        # them.
        with open_data(path, allowed) as file:
            zipfile.ZipFile(file).close()
            file.seek(0)
            with np.load(file, allow_pickle=False) as loaded:
                arrays: dict[str, Any] = dict(loaded)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidArgument(f"{path} cannot be read as an array file (.npz): {type(error).__name__}") from None
    missing = [name for name in (*_PANELS, *_SERIES, "tickers", "metadata") if name not in arrays]
    if missing:
        raise InvalidArgument(f"{path}: arrays missing: {', '.join(missing)}; make the file with `podrace data build`")
    bars = Bars(
        **{name: arrays[name] for name in (*_PANELS, *_SERIES)},
        tickers=tuple(arrays["tickers"].tolist()),
        metadata=_metadata(path, str(arrays["metadata"])),
    )
    check_bars(path, bars)
    return bars


def _metadata(path: str, text: str) -> Metadata:
    try:
        values = json.loads(text)
        metadata = Metadata(**{**values, "notes": tuple(values["notes"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgument(f"{path}: its metadata cannot be read ({type(error).__name__})") from None
    if metadata.version != VERSION:
        raise InvalidArgument(f"{path}: this version of the array file is not supported, expected {VERSION}")
    return metadata


def check_bars(source: str, bars: Bars) -> None:
    """Refuses bars that violate the invariants of an array file.

    Raises:
        InvalidArgument: The message names the array, and the symbol and bar if there is one.
    """
    count, stocks = len(bars.time_utc_seconds), len(bars.tickers)
    if not count or not stocks or len(set(bars.tickers)) != stocks:
        raise InvalidArgument(
            f"{source}: {count} bars of {stocks} symbols: expected at least one bar and one symbol, each symbol once"
        )
    for name, dtype in {**_PANELS, **_SERIES}.items():
        array = getattr(bars, name)
        shapes = [(count, stocks)] if name in _PANELS else [(count,)] + [(0,)] * (name == "index_close")
        if array.dtype != np.dtype(dtype) or array.shape not in shapes:
            raise InvalidArgument(f"{source}: {name} is {array.dtype} {array.shape}, expected {dtype} {shapes[0]}")
    if (np.diff(bars.time_utc_seconds) <= 0).any() or (np.diff(bars.date).astype(np.int64) < 0).any():
        raise InvalidArgument(f"{source}: time_utc_seconds or date is not in ascending order")
    for name in ("open", "high", "low", "close", "volume"):
        values = getattr(bars, name)
        _check_values(source, bars, name, np.isfinite(values) & ((values > 0) | ((name == "volume") & (values == 0))))
    _check_values(source, bars, "high", bars.high >= bars.low)
    if not (np.isfinite(bars.index_close) & (bars.index_close > 0)).all():
        raise InvalidArgument(f"{source}: index_close has a value that is not a positive number")


def _check_values(source: str, bars: Bars, name: str, good: Flags) -> None:
    if not good.all():
        row, column = np.argwhere(~good)[0]
        when = np.datetime64(int(bars.time_utc_seconds[row]), "s")
        raise InvalidArgument(f"{source}: symbol {column + 1} at {when}Z: {name} is not a possible value")
