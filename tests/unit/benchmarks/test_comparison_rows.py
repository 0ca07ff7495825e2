from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.comparison import rows
from benchmarks.comparison.rows import Point, Row

ROW = Row(
    conditions="unknown", task="docking", contender="vanilla", seed=3, settings="abc", version="0123456789ab",
    machine="a processor, 2 cores", date="2026-11-22 10:00", load=0.25, budget_seconds=60.0, wall_seconds=60.5,
    environment_steps=123_456_789, agents=1, state="completed", reason="", final_return=-1.5, final_error=0.25,
    final_episodes=512, reported_score=-1.25, reported_error=0.5, z=0.447214, share_behind=1.0, evaluation_share=0.125,
    stopped_agents=2, correlation=-0.5, backtest_return=None, curve="curves/x.csv",
)  # fmt: skip


def test_rows_are_read_as_they_were_written(tmp_path: Path):
    path = tmp_path / "new" / "runs.csv"
    failed = replace(ROW, seed=4, state="failed", reason="one, two\nthree", final_return=None, z=None, curve="")
    rows.append(path, ROW)
    rows.append(path, failed)
    assert rows.read(path) == [ROW, replace(failed, reason="one, two three")]
    assert [row.good for row in rows.read(path)] == [True, False]
    assert path.read_text().count("conditions,") == 1


def test_a_missing_file_has_no_rows(tmp_path: Path):
    assert rows.read(tmp_path / "none.csv") == []


def test_the_last_row_of_a_run_counts(tmp_path: Path):
    again, other = replace(ROW, final_return=7.0), replace(ROW, settings="other")
    assert rows.latest([ROW, other, again]) == {ROW.key: again, other.key: other}


def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path):
    path = tmp_path / "runs.csv"
    rows.append(path, ROW)
    path.write_text(path.read_text().replace("512", "many"))
    with pytest.raises(SystemExit, match=r"line 2: final_episodes = 'many' is not a number"):
        rows.read(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="expected the columns"):
        rows.read(path)


def test_a_curve_is_read_as_it_was_written(tmp_path: Path):
    points = [Point(7.5, 1000, -1.5, 0.25, 64), Point(15.0, 2_000_000_000, 3.25, 0.5, 512)]
    rows.write_curve(tmp_path / "curves" / "a.csv", points)
    assert rows.read_curve(tmp_path / "curves" / "a.csv") == points
