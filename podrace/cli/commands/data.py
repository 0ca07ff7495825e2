"""Implements `podrace data`: builds, checks and synthesizes the array files that the simulator `stocks` reads.

The work is done by a separate process, `python -m simulators.stocks`, so the command does not import numpy.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import click

from podrace.cli import EXIT_FAILED
from podrace.cli.terminal import formats
from podrace.cli.terminal.interrupts import terminated_as_interrupted
from podrace.cli.terminal.options import output_options
from podrace.cli.terminal.output import show, show_json
from podrace.errors import BY_CODE, Internal

WORKER = "simulators.stocks"
DEADLINE_SECONDS = 4 * 3600.0
"""Time limit of the process. Downloading years of minute bars takes hours."""


HELP = """Prepare prices for the simulator stocks: one array file, checked, adjusted and aligned.

\b
podrace data build prices.csv --output prices.npz    from CSV, Parquet or a folder with one file per symbol
podrace data build yfinance:AAPL,MSFT --start 2015-01-01 --end 2020-01-01 --output prices.npz
podrace data check prices.npz                        show the content and report suspicious data
podrace data synthesize --output prices.npz          random minute bars

Then environment.options.path = "prices.npz". Each command takes --json.
"""


@click.group(help=HELP)
def data() -> None:
    """The commands `podrace data ...`."""


@data.command(short_help="Build an array file from raw bars: prices and volume.")
@click.argument("source")
@click.option("--output", required=True, metavar="FILE", help="Array file to write (.npz).")
@click.option("--calendar", default="XNYS", show_default=True, help="Exchange calendar; none: the days in the data.")
@click.option(
    "--timezone", default="", metavar="ZONE", help="Time zone of times without one.  [default: the exchange's]"
)
@click.option(
    "--bar-minutes", default=0, type=click.IntRange(0, 1440), help="Length of a bar.  [default: as in the data]"
)
@click.option("--start", default="", metavar="DATE", help="First day.")
@click.option("--end", default="", metavar="DATE", help="Day after the last day.")
@click.option("--symbols", default="", metavar="A,B", help="Symbols to use, in this order.  [default: all]")
@click.option("--index", default="", metavar="SYMBOL", help="Index to compare with; not traded.")
@click.option("--splits", default="", metavar="FILE", help="CSV of splits to adjust for: symbol, date, ratio.")
@click.option(
    "--members",
    default="",
    metavar="FILE",
    help="CSV of the periods in which stocks belong to the pool: symbol, from, to.",
)
@click.option("--adjust", is_flag=True, help="Adjust for price jumps that look like splits.")
@click.option("--accept", multiple=True, metavar="SYMBOL:DATE", help="A price jump that is not a split; repeatable.")
@click.option("--repair", is_flag=True, help="Treat impossible bars as missing and replace bad ticks; all are marked.")
@click.option(
    "--maximum-gap-days",
    default=5,
    show_default=True,
    type=click.IntRange(min=0),
    help="Longest accepted gap in the data.",
)
@output_options
def build(symbols: str, as_json: bool, debug: bool, **options: Any) -> int:
    """Build an array file from raw bars: open, high, low, close, volume.

    SOURCE is a CSV or Parquet file with the columns time (or date), symbol, open, high, low, close, volume and
    optionally adj_close; a folder with one file per symbol; yfinance:AAPL,MSFT; or alpaca:AAPL,MSFT.
    """
    wanted = [symbol for symbol in symbols.split(",") if symbol]
    return _answer({"verb": "build", "symbols": wanted, **options}, as_json)


@data.command(short_help="Show the content of an array file; exit code 1 if it looks wrong.")
@click.argument("file")
@output_options
def check(file: str, as_json: bool, debug: bool) -> int:
    """Show the content of an array file and report suspicious data. The exit code is 1 if there is any."""
    return _answer({"verb": "check", "file": file}, as_json)


@data.command(short_help="Generate random minute bars.")
@click.option("--output", required=True, metavar="FILE", help="Array file to write (.npz).")
@click.option("--symbols", default=10, show_default=True, help="Number of stocks.")
@click.option("--days", default=60, show_default=True, help="Number of trading days.")
@click.option("--bar-minutes", default=5, show_default=True, help="Length of a bar.")
@click.option("--seed", default=1, show_default=True, help="The same seed generates the same prices.")
@click.option("--start", default="2020-01-02", show_default=True, metavar="DATE", help="First day.")
@output_options
def synthesize(as_json: bool, debug: bool, **options: Any) -> int:
    """Generate random minute bars: correlated, with volatile openings, overnight gaps, calm and volatile days."""
    return _answer({"verb": "synthesize", **options}, as_json)


def _answer(request: Mapping[str, Any], as_json: bool) -> int:
    found = ask(request)
    if as_json:
        show_json(found)
    else:
        for line in describe(found):
            show(line)
    return EXIT_FAILED if found.get("suspicious") else 0


def ask(request: Mapping[str, Any], deadline_seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
    """Sends a request to the process and returns its result.

    Raises:
        PodraceError: The process reported this error.
        Internal: The process did not answer.
    """
    try:
        with terminated_as_interrupted():  # then subprocess.run kills the process
            done = subprocess.run(
                [sys.executable, "-m", WORKER],
                input=json.dumps(request),
                stdout=subprocess.PIPE,
                text=True,
                timeout=deadline_seconds,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise Internal(f"data: not done after {deadline_seconds:g} s") from None
    if done.returncode:
        raise Internal(f"data: the process exited with code {done.returncode}; its output is above")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise BY_CODE[answer["error"]["code"]](answer["error"]["message"])
    result: dict[str, Any] = answer["result"]
    return result


def describe(found: Mapping[str, Any]) -> list[str]:
    """Describes an array file in several lines."""
    bars = "daily bars" if found["daily"] else f"bars of {found['bar_seconds'] // 60} minutes"
    symbols = found["symbols"]
    named = ", ".join(symbols[:8]) + (f" and {len(symbols) - 8} more" if len(symbols) > 8 else "")
    marked = ", ".join(f"{found[name]} {name}" for name in ("filled", "repaired") if found[name])
    lines = [
        f"{found['file']}: {found['bars']} {bars} of {len(symbols)} symbols ({named})",
        f"  {found['days']} days from {found['first']} to {found['last']}, calendar {found['calendar']}"
        + (f", {formats.things(found['half_days'], 'half day')}" if found["half_days"] else "")
        + (f", index {found['index']}" if found["index"] else ""),
    ]
    lines += [f"  {marked}"] * bool(marked) + [f"  {note}" for note in found["notes"]]
    if found["non_members"]:
        lines.append(f"  {found['non_members']} bars of stocks while they did not belong to the pool: cannot be bought")
    return lines + [f"  {line}" for line in found.get("suspicious", [])]
