"""Builds array files from raw bars: every row of the table in simulators.stocks.pipeline."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from podrace.errors import InvalidArgument
from simulators.stocks.bars import Bars
from simulators.stocks.outliers import find_bad_ticks, robust_deviation
from simulators.stocks.pipeline import build, suspected_splits
from simulators.stocks.rows import BuildOptions
from simulators.stocks.sources import RawBars
from simulators.stocks.splits import Split, find_splits

HALF_HOUR = 1800
OPTIONS = BuildOptions()
Change = Callable[[pd.DataFrame], pd.DataFrame]


def raw_minutes(days: int = 3, symbols: tuple[str, ...] = ("A", "B", "C")) -> RawBars:
    """Makes bars of half an hour from 2022-03-01 on, with prices from a seeded random walk."""
    generator = np.random.default_rng(6)
    dates = np.arange("2022-03-01", "2022-03-12", dtype="datetime64[D]")
    dates = dates[np.is_busday(dates)][:days]
    opening = dates.astype("datetime64[s]").astype(np.int64) + 14 * 3600 + HALF_HOUR
    seconds = (opening[:, None] + HALF_HOUR * np.arange(13)).ravel()
    frames = []
    for symbol in symbols:
        close = 50 * np.exp(np.cumsum(generator.normal(0, 0.002, len(seconds))))
        opened = np.append(50.0, close[:-1])
        columns = {"open": opened, "high": np.maximum(opened, close) * 1.001, "low": np.minimum(opened, close) * 0.999}
        volume = generator.integers(100, 1000, len(seconds)).astype(float)
        frames.append(pd.DataFrame({"symbol": symbol, "seconds": seconds, **columns, "close": close, "volume": volume}))
    return RawBars(pd.concat(frames, ignore_index=True), daily=False, source="raw", digest="d" * 64)


def raw_days(count: int = 60, symbols: tuple[str, ...] = ("A", "B")) -> RawBars:
    """Makes daily bars from 2022-01-03 on, for the days on which XNYS was open."""
    generator = np.random.default_rng(7)
    dates = np.arange("2022-01-03", "2022-12-31", dtype="datetime64[D]")
    closed = ["2022-01-17", "2022-02-21", "2022-04-15", "2022-05-30", "2022-06-20", "2022-07-04"]
    dates = dates[np.is_busday(dates, holidays=closed)][:count]
    seconds = dates.astype("datetime64[s]").astype(np.int64)
    frames = []
    for symbol in symbols:
        close = 50 * np.exp(np.cumsum(generator.normal(0, 0.01, count)))
        columns = {"open": close * 0.999, "high": close * 1.01, "low": close * 0.99, "close": close}
        volume = generator.uniform(0.8e6, 1.2e6, count)
        frames.append(pd.DataFrame({"symbol": symbol, "seconds": seconds, **columns, "volume": volume}))
    return RawBars(pd.concat(frames, ignore_index=True), daily=True, source="raw", digest="d" * 64)


def changed(raw: RawBars, row: int, **values: Any) -> RawBars:
    frame = raw.frame.copy()
    for name, value in values.items():
        frame.loc[row, name] = value
    return replace(raw, frame=frame)


def without(raw: RawBars, rows: list[int] | slice) -> RawBars:
    return replace(raw, frame=raw.frame.drop(raw.frame.index[rows]).reset_index(drop=True))


def refused(raw: RawBars, options: BuildOptions = OPTIONS) -> str:
    with pytest.raises(InvalidArgument) as caught:
        build(raw, options)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_whole_bars_pass_through_unchanged() -> None:
    raw = raw_minutes()
    bars = build(raw, OPTIONS)
    assert bars.tickers == ("A", "B", "C")
    assert bars.close.shape == (3 * 13, 3)
    np.testing.assert_array_equal(bars.close.T.ravel(), raw.frame["close"])
    np.testing.assert_array_equal(bars.volume.T.ravel(), raw.frame["volume"])
    assert not (bars.filled | bars.repaired).any()
    assert bars.member.all()
    assert (bars.metadata.bar_seconds, bars.metadata.calendar, bars.metadata.notes) == (HALF_HOUR, "XNYS", ())
    assert bars.metadata.source_digest == raw.digest
    assert bars.date.astype(str).tolist()[::13] == ["2022-03-01", "2022-03-02", "2022-03-03"]


def test_requested_symbols_and_days_are_kept_and_the_index_is_not_in_the_pool() -> None:
    options = replace(OPTIONS, symbols=("C", "A"), index="B", start="2022-03-02", end="2022-03-03")
    bars = build(raw_minutes(), options)
    assert bars.tickers == ("C", "A")
    assert len(bars.date) == 13
    frame = raw_minutes().frame
    np.testing.assert_array_equal(bars.index_close, frame[frame["symbol"] == "B"]["close"][13:26])
    assert bars.metadata.index == "B"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda raw: changed(raw, 5, seconds=raw.frame["seconds"][4]), "A 2022-03-01T16:30:00Z: the bar is duplic"),
        (lambda raw: changed(raw, 5, seconds=raw.frame["seconds"][3]), "A 2022-03-01T16:00:00Z: the bar follows a"),
        (lambda raw: changed(raw, 15, close=np.nan), "A 2022-03-02T15:30:00Z: close is nan, which is impossible; with"),
        (lambda raw: changed(raw, 15, open=0.0), "A 2022-03-02T15:30:00Z: open is 0, which is impossible"),
        (lambda raw: changed(raw, 15, volume=-1.0), "A 2022-03-02T15:30:00Z: volume is -1, which is impossible"),
        (lambda raw: changed(raw, 15, high=1.0), "A 2022-03-02T15:30:00Z: high is 1, which is impossible"),
        (lambda raw: changed(raw, 5, seconds=raw.frame["seconds"][5] + 60), "A 2022-03-01T17:01:00Z: the bar starts b"),
    ],
)  # fmt: skip
def test_an_impossible_row_is_refused_with_its_symbol_and_time(change: Callable[[RawBars], RawBars], line: str) -> None:
    assert line in refused(change(raw_minutes()))


@pytest.mark.parametrize("values", [{"close": np.nan}, {"open": 0.0}, {"volume": -1.0}, {"high": 1.0}])
def test_a_repaired_row_counts_as_missing_and_is_marked(values: dict[str, float]) -> None:
    bars = build(changed(raw_minutes(), 15, **values), replace(OPTIONS, repair=True))
    assert np.argwhere(bars.filled).tolist() == [[15, 0]]
    for panel in (bars.open, bars.high, bars.low, bars.close):
        assert panel[15, 0] == bars.close[14, 0]
    assert bars.volume[15, 0] == 0
    assert any("1 rows with impossible numbers" in note for note in bars.metadata.notes)


def test_missing_bars_get_the_close_before_and_are_marked() -> None:
    # The last two bars of A's first day, and the first one of its second day.
    bars = build(without(raw_minutes(), [11, 12, 13]), OPTIONS)
    assert np.argwhere(bars.filled).tolist() == [[11, 0], [12, 0], [13, 0]]
    assert (bars.close[11:14, 0] == bars.close[10, 0]).all()
    assert (bars.open[11:14, 0] == bars.close[10, 0]).all()
    assert (bars.volume[11:14, 0] == 0).all()
    assert "3 of 117 bars missing: filled forward and marked" in bars.metadata.notes


def test_bars_are_never_filled_backward_so_all_symbols_start_with_the_last_one() -> None:
    bars = build(without(raw_minutes(), [13 * 3, 13 * 3 + 1]), OPTIONS)
    assert len(bars.date) == 37
    assert not bars.filled.any()
    assert "the first 2 bars dropped: not every symbol has them" in bars.metadata.notes


def test_a_symbol_that_starts_much_later_is_refused() -> None:
    line = refused(without(raw_days(), slice(0, 20)))
    assert "A starts on 2022-02-01, 20 sessions after the first: leave it out, or" in line
    assert "--start 2022-02-01" in line


def test_a_long_gap_is_refused_and_a_short_one_filled() -> None:
    assert "A has no bar for 8 sessions after 2022-01-14" in refused(without(raw_days(), slice(10, 18)))
    assert build(without(raw_days(), slice(10, 15)), OPTIONS).filled.sum() == 5
    assert build(without(raw_days(), slice(10, 18)), replace(OPTIONS, maximum_gap_days=8)).filled.sum() == 8
    # A symbol without bars at the end: its last price must not be traded forever.
    assert "A has no bar for 10 sessions after" in refused(without(raw_days(), slice(50, 60)))


def test_an_unknown_symbol_is_refused_with_the_closest_one() -> None:
    raw = raw_minutes(symbols=("AAPL", "MSFT"))
    assert "no bars of 'APPL'; did you mean 'AAPL'?" in refused(raw, replace(OPTIONS, symbols=("APPL",)))
    assert "no bars of 'QQQ'" in refused(raw, replace(OPTIONS, index="QQQ"))
    assert "named twice" in refused(raw, replace(OPTIONS, symbols=("AAPL",), index="AAPL"))


def test_bars_outside_the_session_are_dropped_and_counted() -> None:
    raw = raw_minutes()
    early = raw.frame.iloc[[0]].assign(seconds=raw.frame["seconds"][0] - HALF_HOUR)
    holiday = raw_days()
    sunday = holiday.frame.iloc[[0]].assign(seconds=holiday.frame["seconds"][0] - 86_400)
    for each, row, size in ((raw, early, 39), (holiday, sunday, 60)):
        bars = build(replace(each, frame=pd.concat([row, each.frame], ignore_index=True)), OPTIONS)
        assert len(bars.date) == size
        assert "1 bars outside the sessions of XNYS dropped" in bars.metadata.notes
    abroad = replace(raw, frame=raw.frame.assign(seconds=raw.frame["seconds"] - 10 * 3600))
    assert "check --calendar and --timezone" in refused(abroad)


def test_without_a_calendar_the_times_of_the_data_are_the_bars() -> None:
    bars = build(raw_minutes(), replace(OPTIONS, calendar="none", timezone="UTC"))
    np.testing.assert_array_equal(bars.close, build(raw_minutes(), OPTIONS).close)
    assert bars.metadata.calendar == "none"


def test_half_days_are_marked() -> None:
    raw = raw_minutes(days=1)
    # The day after Thanksgiving closes at 13:00, after seven bars.
    shift = int((np.datetime64("2022-11-25") - np.datetime64("2022-03-01")).astype(int)) * 86_400
    frame = raw.frame.assign(seconds=raw.frame["seconds"] + shift)
    frame = frame.groupby("symbol").head(7).reset_index(drop=True)
    bars = build(replace(raw, frame=frame), OPTIONS)
    assert len(bars.date) == 7
    assert bars.half_day.all()


# --- splits ------------------------------------------------------------------------------------------------------


def with_split(ratio: float, day: int = 30, *, money_traded: float = 1.0) -> RawBars:
    """A's shares split before row `day`; the prices are not adjusted."""
    raw = raw_days()
    frame = raw.frame.copy()
    rows = frame.index[day:60]
    for name in ("open", "high", "low", "close"):
        frame.loc[rows, name] /= ratio
    frame.loc[rows, "volume"] *= ratio * money_traded
    return replace(raw, frame=frame)


@pytest.mark.long
@pytest.mark.parametrize("ratio", [2.0, 3.0, 4.0, 1.5, 10.0, 20.0, 0.5, 0.1])
def test_an_unadjusted_split_is_refused_or_removed(ratio: float) -> None:
    raw = with_split(ratio)
    kind = f"{ratio:g} for 1" if ratio > 1 else f"1 for {1 / ratio:g}"
    line = refused(raw)
    assert f"A 2022-02-15: looks like an unadjusted split, {kind}; --adjust removes it" in line
    assert "--accept A:2022-02-15 leaves it" in line
    bars, clean = build(raw, replace(OPTIONS, adjust=True)), build(raw_days(), OPTIONS)
    np.testing.assert_allclose(bars.close, clean.close * [1 / ratio, 1])
    np.testing.assert_allclose(bars.volume, clean.volume * [ratio, 1])
    assert suspected_splits(bars) == []
    left = build(raw, replace(OPTIONS, accept=("A:2022-02-15",)))
    np.testing.assert_allclose(left.close[:30], clean.close[:30])
    assert [split.name for split in suspected_splits(left)] == ["A:2022-02-15"]


def test_accepting_a_price_jump_that_does_not_exist_is_refused_with_those_that_do() -> None:
    accepted = replace(OPTIONS, accept=("A:2022-02-15", "A:2022-02-16"))
    message = refused(with_split(2.0), accepted)
    assert message.startswith("--accept A:2022-02-16: no such price jump looks like a split")
    assert message.endswith("(those that do: A:2022-02-15)")
    assert "(those that do: none)" in refused(raw_days(), accepted)


def test_a_crash_is_not_a_split_because_more_money_is_traded() -> None:
    assert build(with_split(2.0, money_traded=4.0), OPTIONS).metadata.notes == ()


def test_a_fall_that_reverts_the_next_day_is_not_a_split() -> None:
    raw = raw_days()
    frame = raw.frame.copy()
    for name in ("open", "high", "low", "close"):
        frame.loc[30, name] /= 2
    assert build(replace(raw, frame=frame), OPTIONS).close[30, 0] == frame["close"][30]


def test_a_split_of_the_table_is_removed_and_its_symbol_must_exist() -> None:
    split = Split("A", "2022-02-15", 2.0)
    bars = build(with_split(2.0), replace(OPTIONS, splits=(split,)))
    np.testing.assert_allclose(bars.close, build(raw_days(), OPTIONS).close * [0.5, 1])
    assert "no bars of 'X'" in refused(raw_days(), replace(OPTIONS, splits=(replace(split, symbol="X"),)))
    assert "the ratio must be a positive number, not 0" in refused(
        raw_days(), replace(OPTIONS, splits=(replace(split, ratio=0.0),))
    )


def test_an_adjusted_close_removes_splits_and_dividends() -> None:
    raw = with_split(2.0)
    frame = raw.frame.assign(adj_close=raw.frame["close"])
    frame.loc[:29, "adj_close"] /= 2
    bars = build(replace(raw, frame=frame), OPTIONS)
    np.testing.assert_allclose(bars.close, build(raw_days(), OPTIONS).close * [0.5, 1])
    np.testing.assert_allclose(bars.volume[:30, 0], 2 * build(raw_days(), OPTIONS).volume[:30, 0])


def test_the_known_split_of_apple_is_found_in_raw_prices_and_nothing_else() -> None:
    from bokeh_sampledata import stocks

    found = []
    for symbol in ("AAPL", "GOOG", "IBM", "MSFT"):
        table = getattr(stocks, symbol)
        dates = np.array(table["date"], "datetime64[D]")
        columns = [np.array(table[name], float)[:, None] for name in ("open", "close", "volume")]
        found += find_splits((symbol,), dates, *columns)
    assert [(split.symbol, split.date, split.ratio) for split in found] == [
        ("AAPL", "2000-06-21", 2.0),
        ("AAPL", "2005-02-28", 2.0),
        ("MSFT", "2003-02-18", 2.0),
    ]


# --- bad ticks ---------------------------------------------------------------------------------------------------


def with_bad_tick(jump: float = 1.3) -> RawBars:
    raw = raw_minutes()
    return changed(raw, 20, close=raw.frame["close"][20] * jump, high=raw.frame["close"][20] * max(jump, 1) * 1.01)


def test_a_bad_tick_is_noted_and_left_as_it_is() -> None:
    bars = build(with_bad_tick(), OPTIONS)
    (note,) = bars.metadata.notes
    assert note.startswith("A 2022-03-02T18:00:00Z: suspected bad tick, +")
    assert "left as it is; --repair replaces it" in note
    assert not bars.repaired.any()
    assert bars.close[20, 0] == with_bad_tick().frame["close"][20]


def test_a_repaired_bad_tick_gets_the_close_before_and_is_marked() -> None:
    bars = build(with_bad_tick(), replace(OPTIONS, repair=True))
    assert np.argwhere(bars.repaired).tolist() == [[20, 0]]
    for panel in (bars.open, bars.high, bars.low, bars.close):
        assert panel[20, 0] == bars.close[19, 0]
    assert bars.volume[20, 0] == 0
    assert not bars.filled.any()


def test_a_jump_that_stays_is_not_a_bad_tick() -> None:
    close = np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.001, (500, 1)), axis=0))
    nothing = np.zeros(close.shape, bool)
    assert find_bad_ticks(close, nothing, 20) == []
    close[200:] *= 1.2
    assert find_bad_ticks(close, nothing, 20) == []
    close[300] *= 0.8
    (tick,) = find_bad_ticks(close, nothing, 20)
    assert (tick.row, tick.column) == (300, 0)
    assert tick.jump == pytest.approx(-0.2, abs=0.01)
    assert find_bad_ticks(np.ones((50, 1)), nothing[:50], 20) == []


def test_the_robust_deviation_is_that_of_a_normal_variable_despite_outliers() -> None:
    returns = np.random.default_rng(0).normal(0, 0.01, 20_000)
    returns[:200] = 5.0
    assert robust_deviation(returns) == pytest.approx(0.01, rel=0.03)
    assert robust_deviation(np.zeros(10)) == 0


# --- members -----------------------------------------------------------------------------------------------------


def test_members_are_marked_from_one_day_until_before_another() -> None:
    members = (
        ("A", "2022-03-02", ""),
        ("B", "", "2022-03-02"),
        ("B", "2022-03-03", ""),
        ("C", "", ""),
        ("GONE", "", ""),
    )
    bars: Bars = build(raw_minutes(), replace(OPTIONS, members=members))
    of_day = bars.member[::13].tolist()
    assert of_day == [[False, True, True], [True, False, True], [True, True, True]]
    assert "members without prices: GONE" in bars.metadata.notes
    assert "B is not in the table" in refused(raw_minutes(), replace(OPTIONS, members=(("A", "", ""), ("C", "", ""))))
    assert "members: A: 'soon' is not a date" in refused(
        raw_minutes(), replace(OPTIONS, members=(("A", "soon", ""), ("B", "", ""), ("C", "", "")))
    )


def test_bars_of_the_evening_do_not_add_a_session() -> None:
    """19:30 in New York is the next date in UTC."""
    raw = raw_minutes(days=2)
    evening = raw.frame.groupby("symbol").tail(1).assign(seconds=lambda last: last["seconds"] + 9 * HALF_HOUR)
    bars = build(replace(raw, frame=pd.concat([raw.frame, evening]).sort_values(["symbol", "seconds"])), OPTIONS)
    assert np.unique(bars.date).astype(str).tolist() == ["2022-03-01", "2022-03-02"]
    assert not bars.filled.any()


def test_a_symbol_without_the_first_common_bar_has_the_close_before_it() -> None:
    raw = raw_minutes()
    in_order = {symbol: frame.index for symbol, frame in raw.frame.groupby("symbol")}
    # B begins with bar 5, in which A has no trade.
    thin = without(raw, [*in_order["B"][:5], in_order["A"][5]])
    bars = build(thin, OPTIONS)
    assert len(bars.close) == 3 * 13 - 5
    assert bars.filled[0].tolist() == [True, False, False]
    assert bars.close[0, 0] == bars.open[0, 0] == raw.frame["close"][in_order["A"][4]]
    assert bars.volume[0, 0] == 0
