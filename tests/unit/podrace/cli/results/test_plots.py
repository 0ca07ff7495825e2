from pathlib import Path
from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Trace
from podrace.cli.results import plots

PNG = b"\x89PNG\r\n\x1a\n"


def trace(*values: float, labels: list[str] | None = None) -> Trace:
    return Trace(values=values, labels=labels or [])


@pytest.mark.long
@pytest.mark.parametrize("labels", [["2010-01-04", "2010-01-05", "2010-01-06"], ["one", "two", "three"], None])
def test_an_account_is_drawn_by_date_or_by_step(tmp_path: Path, labels: list[str] | None) -> None:
    path = tmp_path / "account.png"
    values = trace(1e6, 1.1e6, 0.9e6, labels=labels)
    plots.draw_account_value(path, champion=values, baseline=values, title="Account value")
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 10_000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.long
def test_learning_curves_are_drawn(tmp_path: Path, known: Any) -> None:
    path = tmp_path / "curves.png"
    plots.draw_learning_curves(path, known.tournaments[0], known.submissions)
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 20_000


def test_a_tournament_without_submissions_can_be_drawn(tmp_path: Path, known: Any) -> None:
    path = tmp_path / "curves.png"
    plots.draw_learning_curves(path, known.tournaments[0], [])
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("last", "unit", "position"), [(30, "seconds", 30.0), (600, "minutes", 10.0), (36_000, "hours", 10.0)]
)
def test_the_wall_clock_has_a_suitable_unit(known: Any, last: int, unit: str, position: float) -> None:
    begin = known.tournaments[0].create_time.seconds
    known.submissions[-1].submit_time.FromSeconds(begin + last)
    positions, shown = plots.clock_positions(known.tournaments[0], known.submissions)
    assert shown == unit
    assert positions[known.submissions[-1].candidate_id] == position


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [
        ([], (1.0, "seconds")),
        ([5.0, 179.0], (1.0, "seconds")),
        ([180.0], (60.0, "minutes")),
        ([2e4, 1.0], (3600.0, "hours")),
    ],
)
def test_the_unit_suits_the_longest_time(seconds: list[float], unit: tuple[float, str]) -> None:
    assert plots.clock_unit(seconds) == unit


def test_a_family_is_all_descendants_of_one_fresh_agent(canned: Any) -> None:
    submissions = [
        canned.candidate("t", 0, 1.0),
        canned.candidate("t", 1, 1.0),
        canned.candidate("t", 2, 1.0, parent=1),
        canned.candidate("t", 3, 1.0, parent=2),
    ]
    assert plots.families(submissions) == {"t-a0": "t-a0", "t-a1": "t-a1", "t-a2": "t-a1", "t-a3": "t-a1"}


def test_the_best_so_far_never_falls_and_reaches_the_end(canned: Any) -> None:
    submissions = [canned.candidate("t", number, score) for number, score in enumerate([3.0, 1.0, 5.0, 4.0])]
    positions = {entry.candidate_id: 10.0 - number for number, entry in enumerate(submissions)}
    assert plots.best_so_far(submissions, positions) == ([7.0, 8.0, 10.0], [4.0, 5.0, 5.0])
