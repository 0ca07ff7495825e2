"""Prepares the prices of `paper.py` as an array file for the simulator `stocks`.

The source is an array file (`podrace data build`), or an archive of five-minute bars:

    ohlcv [bars, n, 5], filled [bars, n], time_utc_s [bars], tickers [n]; optionally qqq_ohlcv [bars, 5] (an index fund)
"""

from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from simulators.stocks.bars import Bars, Metadata, read_bars, write_bars

ZONE = "America/New_York"
BAR_SECONDS = 300
OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)


def prepare(source: Path, output: Path) -> Path:
    """Returns the array file to read: `source` itself if it is one, else `output`, built from it.

    Raises:
        SystemExit: The file does not exist.
        InvalidArgument: It contains impossible bars.
    """
    if not source.exists():
        raise SystemExit(f"--data {source}: no such file")
    with np.load(source, allow_pickle=False) as file:
        if "ohlcv" not in file:
            read_bars(str(source))
            return source
        arrays = dict(file)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bars(str(output), bars_of(arrays, source.name))
    return output


def bars_of(arrays: dict[str, np.ndarray], name: str) -> Bars:
    """Converts the arrays of an archive to those of an array file; nothing is repaired."""
    panels = arrays["ohlcv"].astype(np.float64)
    times = arrays["time_utc_s"].astype(np.int64)
    dates = np.array(
        pd.to_datetime(times, unit="s", utc=True).tz_convert(ZoneInfo(ZONE)).tz_localize(None), "datetime64[D]"
    )
    _, day, bars_a_day = np.unique(dates, return_inverse=True, return_counts=True)
    index = arrays["qqq_ohlcv"][:, CLOSE].astype(np.float64) if "qqq_ohlcv" in arrays else np.zeros(0)
    return Bars(
        open=panels[..., OPEN],
        high=panels[..., HIGH],
        low=panels[..., LOW],
        close=panels[..., CLOSE],
        volume=panels[..., VOLUME],
        filled=arrays["filled"],
        repaired=np.zeros_like(arrays["filled"]),
        member=np.ones_like(arrays["filled"]),
        time_utc_seconds=times,
        date=dates,
        half_day=(bars_a_day < bars_a_day.max())[day],
        index_close=index,
        tickers=tuple(str(ticker) for ticker in arrays["tickers"]),
        metadata=Metadata("none", ZONE, BAR_SECONDS, name, "", index="QQQ" if len(index) else ""),
    )
