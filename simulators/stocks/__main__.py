"""Runs the data pipeline as a process, because the `podrace` command does not import numpy.

One JSON request is read, and one JSON answer is written:

    echo '{"verb": "check", "file": "prices.npz"}' | python -m simulators.stocks

An answer is {"result": ...} or {"error": {"code": ..., "message": ...}}; a bug ends the process with a traceback.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from podrace.errors import InvalidArgument, PodraceError
from simulators.stocks.bars import SECONDS_A_DAY, Bars, read_bars, write_bars
from simulators.stocks.outliers import find_bad_ticks
from simulators.stocks.pipeline import build, describe_bad_ticks, suspected_splits
from simulators.stocks.rows import BuildOptions
from simulators.stocks.sessions import NO_CALENDAR, timezone_of
from simulators.stocks.sources import read_source
from simulators.stocks.splits import Split
from simulators.stocks.synthetic import SyntheticMarket, synthetic_bars


def main() -> int:
    """Answers one request."""
    request = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"result": VERBS[request.pop("verb")](**request)}
    except PodraceError as error:
        answer = {"error": {"code": error.code, "message": error.message}}
    json.dump(answer, sys.stdout)
    return 0


def build_file(
    *, source: str, output: str, timezone: str, start: str, end: str, bar_minutes: int, splits: str, members: str,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Builds an array file from raw bars; see BuildOptions. `splits` and `members` are CSV files or empty."""
    calendar_zone = timezone_of(options["calendar"])
    zone = timezone or calendar_zone
    _check_zone(zone)
    for name, text in (("--start", start), ("--end", end)):
        _check_date(name, text)
    raw = read_source(source, timezone=zone, start=start, end=end, bar_minutes=bar_minutes)
    others: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    wanted = BuildOptions(
        timezone=calendar_zone if options["calendar"] != NO_CALENDAR else zone,
        bar_seconds=60 * bar_minutes,
        start=start,
        end=end,
        splits=tuple(_split(splits, row) for row in _table(splits, ("symbol", "date", "ratio"))),
        members=tuple((row["symbol"], row["from"], row["to"]) for row in _table(members, ("symbol", "from", "to"))),
        **others,
    )
    bars = build(raw, wanted)
    write_bars(output, bars)
    return summary(output, bars)


def check_file(*, file: str) -> dict[str, Any]:
    """Summarizes an array file, and lists what looks wrong in it."""
    bars = read_bars(file)
    ticks = find_bad_ticks(bars.close, bars.filled | bars.repaired, BuildOptions.outlier_deviations)
    described = describe_bad_ticks(bars.tickers, bars.time_utc_seconds, ticks)
    return summary(file, bars) | {"suspicious": [*map(str, suspected_splits(bars)), *described]}


def synthesize_file(*, output: str, **fields: Any) -> dict[str, Any]:
    """Writes a synthetic market as an array file; see SyntheticMarket."""
    bars = synthetic_bars(SyntheticMarket(**fields))
    write_bars(output, bars)
    return summary(output, bars)


def summary(file: str, bars: Bars) -> dict[str, Any]:
    """Summarizes an array file."""
    return {
        "file": file,
        "symbols": list(bars.tickers),
        "bars": len(bars.date),
        "days": len(np.unique(bars.date)),
        "half_days": len(np.unique(bars.date[bars.half_day])),
        "first": str(bars.date[0]),
        "last": str(bars.date[-1]),
        "filled": int(bars.filled.sum()),
        "repaired": int(bars.repaired.sum()),
        "non_members": int((~bars.member).sum()),
        **asdict(bars.metadata),
        "daily": bars.metadata.bar_seconds >= SECONDS_A_DAY,
    }


def _table(path: str, columns: tuple[str, ...]) -> Sequence[Mapping[str, str]]:
    if not path:
        return []
    try:
        with Path(path).open(newline="") as file:
            rows = [{str(key).lower(): value or "" for key, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from error
    if rows and not set(columns) <= set(rows[0]):
        raise InvalidArgument(f"{path}: expected the columns {', '.join(columns)} (found: {', '.join(rows[0])})")
    return rows


def _check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidArgument(f"--timezone {name!r}: not an IANA time zone (write America/New_York)") from None


def _check_date(option: str, text: str) -> None:
    try:
        if text:
            date.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{option} {text!r}: not a date (write 2010-01-31)") from None


def _split(path: str, row: Mapping[str, str]) -> Split:
    try:
        split = Split(row["symbol"], str(np.datetime64(row["date"], "D")), float(row["ratio"]))
    except ValueError as error:
        raise InvalidArgument(f"{path}: {row['symbol']} {row['date']}: {error}") from error
    if np.isnat(np.datetime64(split.date)):
        raise InvalidArgument(f"{path}: a split of {row['symbol']} has no date (write 2010-01-31)")
    return split


VERBS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "build": build_file,
    "check": check_file,
    "synthesize": synthesize_file,
}

if __name__ == "__main__":
    sys.exit(main())
