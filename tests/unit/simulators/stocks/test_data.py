from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from podrace.errors import InvalidArgument, Unimplemented
from simulators.options import parse_options
from simulators.stocks.data import BUILT_IN_TICKERS, load_prices, split_rows
from simulators.stocks.options import SPLITS, StockOptions

WriteFrame = Callable[[pd.DataFrame], str]

SMALL = """date,ticker,open,high,low,close,volume
2020-01-02,NA,1,2,1,1.5,10
2020-01-03,NA,1,2,1,1.6,10
2020-01-06,NA,1,2,1,1.7,10
2020-01-03,B,10,12,10,11,10
2020-01-06,B,10,13,10,12,10
2020-01-07,B,10,13,10,12,10
"""


def write(path: Path, text: str) -> str:
    file = path / "prices.csv"
    file.write_text(text)
    return str(file)


def test_the_built_in_prices_are_four_stocks_from_googles_first_day() -> None:
    prices = load_prices()
    assert prices.tickers == BUILT_IN_TICKERS
    assert (str(prices.dates[0]), str(prices.dates[-1])) == ("2004-08-19", "2013-03-01")
    assert prices.high.shape == prices.low.shape == prices.close.shape == (2148, 4)
    assert (prices.low <= prices.close).all()
    assert (prices.close <= prices.high).all()


def test_splits_and_dividends_are_removed_from_the_prices() -> None:
    prices = load_prices(tickers=["AAPL", "GOOG"])
    # Apple split 2:1 on 2005-02-28: the raw close halves, the adjusted close does not.
    row = int(np.searchsorted(prices.dates, np.datetime64("2005-02-28")))
    assert abs(prices.close[row, 0] / prices.close[row - 1, 0] - 1) < 0.1
    from bokeh_sampledata.stocks import GOOG

    np.testing.assert_allclose(prices.close[:, 1], GOOG["adj_close"], rtol=1e-12)
    factor = np.array(GOOG["adj_close"]) / np.array(GOOG["close"])
    np.testing.assert_allclose(prices.high[:, 1], np.array(GOOG["high"]) * factor, rtol=1e-12)


def test_only_days_on_which_every_stock_was_traded_are_kept(tmp_path: Path) -> None:
    prices = load_prices(write(tmp_path, SMALL))
    assert prices.dates.astype(str).tolist() == ["2020-01-03", "2020-01-06"]
    assert prices.tickers == ("B", "NA")
    assert prices.close.tolist() == [[11, 1.6], [12, 1.7]]


def test_tickers_are_kept_in_the_requested_order(tmp_path: Path) -> None:
    prices = load_prices(write(tmp_path, SMALL), ["NA", "B"])
    assert prices.tickers == ("NA", "B")
    assert prices.close[0].tolist() == [1.6, 11]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "2020-01-03,B,10,12,10,11,",
            "2020-01-03,B,10,12,10,,",
            "row 4 .*: close is not a positive number",
        ),
        (
            "2020-01-03,B,10,12,10,11,",
            "2020-01-03,B,10,12,-1,11,",
            "row 4 .*: low is not a positive number",
        ),
        (
            "2020-01-03,B,10,12,10,11,",
            "2020-01-03,B,10,0,10,11,",
            "row 4 .*: high is not a positive number",
        ),
        (
            "2020-01-03,B,10,12,10,11,",
            "2020-01-03,B,10,12,10,inf,",
            "row 4 .*: close is not a positive number",
        ),
        ("2020-01-03,B", "2020-01-06,B", "row 5 after the header: the date appears twice"),
        ("2020-01-03,B", "2020-01-07,B", "row 5 after the header: the date follows a later one; sort by date"),
        ("2020-01-03,B", "3 January,B", "row 4 after the header: the date is not one"),
        ("ticker,", "symbol,", "columns missing: ticker"),
        (",NA,", ",,", "row 1 after the header has no ticker"),
    ],
)
def test_a_faulty_row_is_refused_by_its_number_and_not_quoted(tmp_path: Path, old: str, new: str, line: str) -> None:
    text = SMALL.replace(old, new)
    assert text != SMALL
    path = write(tmp_path, text)
    with pytest.raises(InvalidArgument, match=line) as caught:
        load_prices(path)
    assert path in caught.value.message
    assert "\n" not in caught.value.message


def test_a_date_is_the_day_as_written_for_any_time_and_zone(tmp_path: Path) -> None:
    text = SMALL.replace("2020-01-03,", "2020-01-03T00:00:00+09:00,").replace(
        "2020-01-06,", "2020-01-06 23:59:00-05:00,"
    )
    assert load_prices(write(tmp_path, text)).dates.astype(str).tolist() == ["2020-01-03", "2020-01-06"]


def test_prices_are_adjusted_for_every_spelling_of_the_adjusted_close(tmp_path: Path) -> None:
    rows = "2020-01-02,A,105,95,100,25\n2020-01-03,A,27,24,26,26\n"
    for number, name in enumerate(("adj_close", "Adj Close", "ADJ. CLOSE")):
        file = tmp_path / f"{number}.csv"
        file.write_text(f"Date,Ticker,High,Low,Close,{name}\n{rows}")
        np.testing.assert_allclose(load_prices(str(file)).close, [[25], [26]])


@pytest.mark.parametrize("second", ["close", "Close"])
def test_a_column_that_appears_twice_is_refused(tmp_path: Path, second: str) -> None:
    file = tmp_path / "twice.csv"
    file.write_text(f"date,ticker,high,low,close,{second}\n2020-01-02,A,1,1,1,2\n")
    with pytest.raises(InvalidArgument, match=r"twice\.csv: the column close appears twice; keep one of them$"):
        load_prices(str(file))


def test_stocks_without_a_common_day_are_refused(tmp_path: Path) -> None:
    text = "date,ticker,high,low,close\n2020-01-02,A,1,1,1\n2020-01-03,B,1,1,1\n"
    with pytest.raises(InvalidArgument, match="no day has prices of all of A, B"):
        load_prices(write(tmp_path, text))


def test_an_unknown_ticker_is_refused_with_the_closest_one() -> None:
    with pytest.raises(InvalidArgument, match="no prices of 'APPL'; did you mean 'AAPL'\\? \\(known: AAPL, GOOG"):
        load_prices(tickers=["APPL"])
    with pytest.raises(InvalidArgument, match="names a stock twice"):
        load_prices(tickers=["AAPL", "AAPL"])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"option 'path': .*absent\.csv cannot be read"):
        load_prices(str(tmp_path / "absent.csv"))
    with pytest.raises(InvalidArgument, match=r"option 'path': .*prices\.csv cannot be read"):
        load_prices(write(tmp_path, ""))


def test_parquet_reads_as_csv_does_or_says_what_to_install(tmp_path: Path) -> None:
    path = str(tmp_path / "prices.parquet")
    try:
        pd.read_csv(write(tmp_path, SMALL), keep_default_na=False).to_parquet(path)
    except ImportError:
        (tmp_path / "prices.parquet").write_bytes(b"")
        with pytest.raises(Unimplemented, match="pip install pyarrow"):
            load_prices(path)
    else:
        assert load_prices(path).close.tolist() == [[11, 1.6], [12, 1.7]]


def split_dates(dates: NDArray[np.datetime64], **changes: Any) -> dict[str, list[str]]:
    options = replace(
        StockOptions(train_start="2020-01-04", train_end="2020-01-10", validation_end="2020-01-15"), **changes
    )
    rows = {split: split_rows(dates, replace(options, split=split), 2)[1] for split in SPLITS}
    return {split: dates[rows[split].start : rows[split].stop].astype(str).tolist() for split in SPLITS}


DATES = np.arange("2020-01-01", "2020-01-21", dtype="datetime64[D]")


def test_splits_are_half_open_and_share_no_day() -> None:
    splits = split_dates(DATES, backtest_end="2020-01-20")
    assert (splits["train"][0], splits["train"][-1]) == ("2020-01-04", "2020-01-09")
    assert (splits["validation"][0], splits["validation"][-1]) == ("2020-01-10", "2020-01-14")
    assert (splits["backtest"][0], splits["backtest"][-1]) == ("2020-01-15", "2020-01-19")


def test_omitted_dates_mean_the_first_day_with_history_and_the_last_day() -> None:
    splits = split_dates(DATES, train_start="")
    assert splits["train"][0] == "2020-01-03"
    assert splits["backtest"][-1] == "2020-01-20"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train_start": "2020-01-02"}, "'train_start': 2020-01-02 has 1 days .* need 2 \\(first possible: 2020-01-03"),
        ({"train_end": "2020-01-16"}, "not in this order: train_start = 2020-01-04, train_end = 2020-01-16, "),
        ({"train_end": "2020-01-05"}, "split 'train' has 1 of the 3 days"),
        ({"train_end": "soon"}, "option 'train_end': 'soon' is not a date"),
        ({"backtest_end": "2020-01-15"}, "split 'backtest' has 0 of the 3 days"),
    ],
)
def test_an_impossible_split_is_refused(changes: dict[str, str], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        split_dates(DATES, **changes)


def test_a_split_holds_at_least_one_episode() -> None:
    options = StockOptions(train_start="2020-01-04", train_end="2020-01-10", validation_end="", episode_days=7)
    with pytest.raises(InvalidArgument, match="split 'train' has 6 of the 7 days that an episode needs"):
        split_rows(DATES, options, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("split", "test"),
        ("episode_days", 1),
        ("cost", 1.0),
        ("cost", -0.1),
        ("turbulence_threshold", -1.0),
        ("initial_cash", 0.0),
        ("initial_cash", float("nan")),
        ("maximum_shares", 0),
        ("reward_scale", 0.0),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_name(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"option '{name}' must be .* not '?{value}"):
        parse_options("stocks", {name: value}, StockOptions)
