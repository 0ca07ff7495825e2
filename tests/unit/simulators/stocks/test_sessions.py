import numpy as np
import pytest

from podrace.errors import InvalidArgument
from simulators.stocks.sessions import bar_length, data_grid, session_grid, timezone_of


def day(text: str) -> np.datetime64:
    return np.datetime64(text, "D")


def hours(seconds: np.ndarray) -> list[str]:
    return [str(np.datetime64(int(each), "s"))[11:16] for each in seconds]


def test_a_week_with_thanksgiving_has_a_holiday_and_a_half_day() -> None:
    grid = session_grid("XNYS", day("2022-11-21"), day("2022-11-28"), 1800)
    days = sorted({str(each) for each in grid.date})
    assert days == ["2022-11-21", "2022-11-22", "2022-11-23", "2022-11-25", "2022-11-28"]
    friday = grid.date == day("2022-11-25")
    assert grid.half_day.tolist() == friday.tolist()
    assert hours(grid.time_utc_seconds[friday]) == ["14:30", "15:00", "15:30", "16:00", "16:30", "17:00", "17:30"]
    monday = grid.date == day("2022-11-21")
    assert (monday.sum(), hours(grid.time_utc_seconds[monday])[-1]) == (13, "20:30")


def test_a_half_day_is_recognized_even_without_other_days() -> None:
    assert session_grid("XNYS", day("2022-11-25"), day("2022-11-25"), 1800).half_day.all()


def test_the_clock_of_the_exchange_changes_and_its_opening_does_not() -> None:
    grid = session_grid("XNYS", day("2022-03-11"), day("2022-03-14"), 86_400)
    assert grid.date.astype(str).tolist() == ["2022-03-11", "2022-03-14"]
    assert hours(grid.time_utc_seconds) == ["14:30", "13:30"]
    assert hours(grid.key) == ["00:00", "00:00"]


def test_a_lunch_break_has_no_bars() -> None:
    grid = session_grid("XTKS", day("2022-03-01"), day("2022-03-01"), 1800)
    assert hours(grid.time_utc_seconds) == ["00:00", "00:30", "01:00", "01:30", "02:00", "03:30", "04:00", "04:30",
                                            "05:00", "05:30"]  # fmt: skip


def test_days_without_a_session_and_unknown_calendars_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="XNYS has no session from 2022-11-26 to 2022-11-27"):
        session_grid("XNYS", day("2022-11-26"), day("2022-11-27"), 300)
    with pytest.raises(InvalidArgument, match="unknown calendar 'XNYC'; did you mean"):
        session_grid("XNYC", day("2022-11-25"), day("2022-11-25"), 300)
    assert timezone_of("XNYS") == "America/New_York"
    assert timezone_of("none") == "UTC"


def test_without_a_calendar_every_time_is_a_bar_of_its_local_day() -> None:
    evening = np.datetime64("2022-03-01T23:30", "s").astype(np.int64)
    grid = data_grid(np.array([evening + 3600, evening, evening]), "UTC", 3600)
    assert grid.date.astype(str).tolist() == ["2022-03-01", "2022-03-02"]
    assert data_grid(np.array([evening, evening + 3600]), "America/New_York", 3600).date.astype(str).tolist() == [
        "2022-03-01",
        "2022-03-01",
    ]


def test_the_length_of_a_bar_is_the_most_frequent_distance() -> None:
    symbols = np.array(["A"] * 4 + ["B"] * 3, object)
    assert bar_length(symbols, np.array([0, 300, 600, 1500, 0, 300, 900])) == 300
    with pytest.raises(InvalidArgument, match="set --bar"):
        bar_length(np.array(["A", "B"], object), np.array([0, 300]))
