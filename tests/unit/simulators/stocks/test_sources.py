"""Reads raw bars; services are replaced by modules with the same interface."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from podrace.errors import InvalidArgument, NotFound, Unavailable, Unimplemented
from simulators.stocks.sources import RawBars, read_source

NEW_YORK = "America/New_York"
HEAD = "time,symbol,open,high,low,close,volume\n"
NUMBERS = ",1,2,0.5,1.5,10\n"


def read(tmp_path: Path, text: str, timezone: str = NEW_YORK) -> RawBars:
    file = tmp_path / "prices.csv"
    file.write_text(text)
    return read_source(str(file), timezone=timezone)


def seconds(text: str) -> int:
    return int(np.datetime64(text, "s").astype(np.int64))


@pytest.mark.parametrize(
    ("written", "utc"),
    [
        ("2022-03-01T09:30:00", "2022-03-01T14:30"),
        ("2022-07-01 09:30", "2022-07-01T13:30"),
        ("2022-07-01T09:30:00-04:00", "2022-07-01T13:30"),
        ("2022-07-01T13:30:00Z", "2022-07-01T13:30"),
        ("1656682200", "2022-07-01T13:30"),
        ("1656682200000", "2022-07-01T13:30"),
        ("1656682200000000000", "2022-07-01T13:30"),
    ],
)
def test_times_become_utc_for_every_notation(tmp_path: Path, written: str, utc: str) -> None:
    raw = read(tmp_path, HEAD + written + ",A" + NUMBERS)
    assert not raw.daily
    assert raw.frame["seconds"].tolist() == [seconds(utc)]
    assert raw.frame.loc[0, ["open", "high", "low", "close", "volume"]].tolist() == [1, 2, 0.5, 1.5, 10]


@pytest.mark.parametrize(
    "written",
    ["2022-07-01", "20220701", "2022-07-01T00:00:00", "2022-07-01T00:00:00-04:00", "2022-07-01T04:00:00Z",
     "2022-07-01T00:00:00Z"],
)  # fmt: skip
def test_bars_that_start_at_midnight_are_daily(tmp_path: Path, written: str) -> None:
    raw = read(tmp_path, HEAD + written + ",A" + NUMBERS)
    assert raw.daily
    assert raw.frame["seconds"].tolist() == [seconds("2022-07-01")]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            ["2022-03-01T09:30:00Z,A", "2022-03-01T09:35:00,A"],
            "A 2022-03-01T09:35:00: the time has no zone, but others",
        ),
        (["soon,A"], "A: 'soon' is not a time"),
        (["2022-03-13T02:30:00,A"], "does not exist, or exists twice, in America/New_York"),
        (["2022-03-01T09:30:00,"], "row 1: the symbol is missing"),
    ],
)
def test_an_invalid_time_is_refused_with_its_place(tmp_path: Path, rows: list[str], line: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(tmp_path, HEAD + "".join(row + NUMBERS for row in rows))
    assert line in caught.value.message
    assert "\n" not in caught.value.message


def test_columns_may_have_other_names_and_missing_ones_are_named(tmp_path: Path) -> None:
    raw = read(tmp_path, "Date,Ticker,Open,High,Low,Close,Adj Close,Volume\n2022-03-01,NA,1,2,1,1.5,1.4,10\n")
    assert raw.frame["symbol"].tolist() == ["NA"]
    assert raw.frame["adj_close"].tolist() == [1.4]
    with pytest.raises(
        InvalidArgument, match=r"columns missing: volume, time \(found: symbol, open, high, low, close\)"
    ):
        read(tmp_path, "symbol,open,high,low,close\nA,1,1,1,1\n")


@pytest.mark.parametrize(("second", "named"), [("ticker", "symbol"), ("close", "close"), ("Close", "close")])
def test_a_column_that_appears_twice_is_refused(tmp_path: Path, second: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the column {named} appears twice; keep one of them$"):
        read(tmp_path, HEAD.strip() + f",{second}\n2022-03-01,A" + NUMBERS.strip() + ",1\n")


def test_a_folder_has_one_file_per_symbol(tmp_path: Path) -> None:
    folder = tmp_path / "prices"
    folder.mkdir()
    for name in ("B", "A"):
        (folder / f"{name}.csv").write_text("date,open,high,low,close,volume\n2022-03-01" + NUMBERS)
    (folder / "C.csv").write_text("date,symbol,open,high,low,close,volume\n2022-03-01,CC" + NUMBERS)
    (folder / "readme.txt").write_text("no prices")
    raw = read_source(str(folder), timezone=NEW_YORK)
    assert raw.frame["symbol"].tolist() == ["A", "B", "CC"]
    before = raw.digest
    (folder / "A.csv").write_text("date,open,high,low,close,volume\n2022-03-02" + NUMBERS)
    assert read_source(str(folder), timezone=NEW_YORK).digest != before


def test_parquet_reads_as_csv_does(tmp_path: Path) -> None:
    raw = read(tmp_path, HEAD + "2022-03-01T09:30:00,A" + NUMBERS + "2022-03-01T09:35:00,A" + NUMBERS)
    path = tmp_path / "prices.parquet"
    frame = raw.frame.assign(time=pd.to_datetime(raw.frame["seconds"], unit="s", utc=True)).drop(columns="seconds")
    frame.to_parquet(path)
    pd.testing.assert_frame_equal(read_source(str(path), timezone=NEW_YORK).frame, raw.frame)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"absent\.csv: no such file"):
        read_source(str(tmp_path / "absent.csv"), timezone=NEW_YORK)
    with pytest.raises(InvalidArgument, match=r"the folder has no \.csv or \.parquet file"):
        read_source(str(tmp_path), timezone=NEW_YORK)


# --- services ----------------------------------------------------------------------------------------------------


def yahoo(monkeypatch: pytest.MonkeyPatch, table: Any) -> list[Any]:
    """Installs a module with the function of yfinance that is used; returns the list of its calls."""
    asked: list[Any] = []

    def download(tickers: list[str], **arguments: Any) -> Any:
        asked.append((tickers, arguments))
        if isinstance(table, Exception):
            raise table
        return table

    module = ModuleType("yfinance")
    module.download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "yfinance", module)
    return asked


def yahoo_table(symbols: list[str], index: pd.DatetimeIndex) -> pd.DataFrame:
    columns = pd.MultiIndex.from_product(
        [symbols, ["Open", "High", "Low", "Close", "Adj Close", "Volume"]], names=["Ticker", "Price"]
    )
    row = [1.0, 2.0, 0.5, 1.5, 1.2, 10.0]
    return pd.DataFrame([row * len(symbols)] * len(index), index=index, columns=columns)


def test_yfinance_is_queried_for_unadjusted_days_with_their_adjusted_close(monkeypatch: pytest.MonkeyPatch) -> None:
    days = pd.DatetimeIndex(["2022-03-01", "2022-03-02"], name="Date")
    asked = yahoo(monkeypatch, yahoo_table(["AAPL", "MSFT"], days))
    raw = read_source("yfinance:AAPL,MSFT", timezone=NEW_YORK, start="2022-03-01", end="2022-03-03")
    ((tickers, arguments),) = asked
    assert tickers == ["AAPL", "MSFT"]
    assert (arguments["start"], arguments["end"], arguments["interval"]) == ("2022-03-01", "2022-03-03", "1d")
    assert (arguments["auto_adjust"], arguments["group_by"]) == (False, "ticker")
    assert raw.daily
    assert raw.frame["symbol"].tolist() == ["AAPL"] * 2 + ["MSFT"] * 2
    assert raw.frame["adj_close"].tolist() == [1.2] * 4
    assert raw.frame["seconds"].tolist() == [seconds("2022-03-01"), seconds("2022-03-02")] * 2
    assert len(raw.digest) == 64


def test_yfinance_returns_minutes_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    times = pd.DatetimeIndex(["2022-03-01T14:30Z", "2022-03-01T14:35Z"], name="Datetime")
    asked = yahoo(monkeypatch, yahoo_table(["AAPL"], times))
    raw = read_source("yfinance:AAPL", timezone=NEW_YORK, start="2022-03-01", end="2022-03-02", bar_minutes=5)
    assert asked[0][1]["interval"] == "5m"
    assert raw.frame["seconds"].tolist() == [seconds("2022-03-01T14:30"), seconds("2022-03-01T14:35")]


def test_a_symbol_unknown_to_a_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    yahoo(monkeypatch, yahoo_table(["AAPL"], pd.DatetimeIndex(["2022-03-01"])))
    with pytest.raises(InvalidArgument, match="yfinance: no bars of APPL from 2022-03-01 to 2022-03-02"):
        read_source("yfinance:AAPL,APPL", timezone=NEW_YORK, start="2022-03-01", end="2022-03-02")
    yahoo(monkeypatch, None)
    with pytest.raises(InvalidArgument, match="no bars of AAPL"):
        read_source("yfinance:AAPL", timezone=NEW_YORK, start="2022-03-01", end="2022-03-02")


def test_a_service_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    yahoo(monkeypatch, ConnectionError("no route\nto host"))
    with pytest.raises(Unavailable, match="yfinance did not return the bars: no route to host"):
        read_source("yfinance:AAPL", timezone=NEW_YORK, start="2022-03-01", end="2022-03-02")


def test_a_missing_package_of_a_service_is_named_with_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yfinance", None)
    with pytest.raises(Unimplemented, match=r"pip install 'podrace\[yfinance\]'"):
        read_source("yfinance:AAPL", timezone=NEW_YORK, start="2022-03-01", end="2022-03-02")


def test_a_service_needs_symbols_and_days() -> None:
    with pytest.raises(InvalidArgument, match="a service needs symbols"):
        read_source("alpaca:AAPL", timezone=NEW_YORK)


def alpaca(monkeypatch: pytest.MonkeyPatch, table: pd.DataFrame) -> list[Any]:
    """Installs modules with the classes of alpaca-py that are used."""
    asked: list[Any] = []

    class Client:
        def __init__(self, key: str, secret: str) -> None:
            asked.append((key, secret))

        def get_stock_bars(self, request: SimpleNamespace) -> SimpleNamespace:
            asked.append(request)
            return SimpleNamespace(df=table)

    class TimeFrame:
        Day = "a day"

        def __init__(self, amount: int, unit: str) -> None:
            self.amount, self.unit = amount, unit

    modules = {
        "enums": {"Adjustment": SimpleNamespace(ALL="all")},
        "historical": {"StockHistoricalDataClient": Client},
        "requests": {"StockBarsRequest": lambda **fields: SimpleNamespace(**fields)},
        "timeframe": {"TimeFrame": TimeFrame, "TimeFrameUnit": SimpleNamespace(Minute="Min")},
    }
    monkeypatch.setitem(sys.modules, "alpaca", ModuleType("alpaca"))
    monkeypatch.setitem(sys.modules, "alpaca.data", ModuleType("alpaca.data"))
    for name, members in modules.items():
        module = ModuleType(f"alpaca.data.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_alpaca_is_queried_with_the_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    index = pd.MultiIndex.from_product(
        [["AAPL"], pd.DatetimeIndex(["2022-03-01T14:30Z", "2022-03-01T14:35Z"])], names=["symbol", "timestamp"]
    )
    columns = {"open": 1.0, "high": 2.0, "low": 0.5, "close": 1.5, "volume": 10.0, "trade_count": 3.0, "vwap": 1.1}
    asked = alpaca(monkeypatch, pd.DataFrame(columns, index=index))
    arguments: dict[str, Any] = {"timezone": NEW_YORK, "start": "2022-03-01", "end": "2022-03-02", "bar_minutes": 5}
    monkeypatch.delenv("APCA_API_KEY_ID", raising=False)
    with pytest.raises(InvalidArgument, match="set APCA_API_KEY_ID and APCA_API_SECRET_KEY"):
        read_source("alpaca:AAPL", **arguments)
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    raw = read_source("alpaca:AAPL", **arguments)
    assert asked[0] == ("key", "secret")
    request = asked[1]
    assert (request.symbol_or_symbols, request.adjustment) == (["AAPL"], "all")
    assert (request.timeframe.amount, request.timeframe.unit) == (5, "Min")
    assert raw.frame["seconds"].tolist() == [seconds("2022-03-01T14:30"), seconds("2022-03-01T14:35")]
    assert not raw.daily
