"""Fixtures of simulator tests: small price files in the format of simulators.stocks.data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

WriteFrame = Callable[[pd.DataFrame], str]


@pytest.fixture
def write_prices(tmp_path: Path) -> WriteFrame:
    """Returns a function that writes a frame of prices to a file and returns its path."""

    def write(frame: pd.DataFrame) -> str:
        path = tmp_path / f"prices_{len(list(tmp_path.iterdir()))}.csv"
        frame.to_csv(path, index=False)
        return str(path)

    return write


@pytest.fixture
def random_prices() -> pd.DataFrame:
    """Makes 400 business days of three stocks from a seeded random walk, with rows (date, ticker)."""
    generator = np.random.default_rng(5)
    dates = pd.bdate_range("2015-01-01", periods=400)
    frames = []
    for ticker in ("AAA", "BBB", "CCC"):
        close = 50 * np.exp(np.cumsum(generator.normal(0, 0.02, len(dates))))
        high, low = close * (1 + generator.uniform(0, 0.02, 400)), close * (1 - generator.uniform(0, 0.02, 400))
        columns = {"open": close, "high": high, "low": low, "close": close, "volume": 1000, "adj_close": close}
        frames.append(pd.DataFrame({"date": dates.strftime("%Y-%m-%d"), "ticker": ticker, **columns}))
    return pd.concat(frames, ignore_index=True)
