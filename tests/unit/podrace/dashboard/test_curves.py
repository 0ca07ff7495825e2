"""A chart shows every submission, within its limits of curves and values."""

import json

import pytest
from messages import candidate

from podrace.dashboard import curves
from podrace.dashboard.curves import ChartRequest, Curves, chart, chart_json
from podrace.dashboard.points import ChartAxis, SubmissionPoints
from podrace.leaderboard.v1.leaderboard_pb2 import VERDICT_HELD, VERDICT_REFUSED


def points_of(*candidates):
    points = SubmissionPoints(0.0)
    for one in candidates:
        points.add(one)
    return points


def values(series):
    return [value for value in series["y"] if value is not None]


def test_each_agent_has_a_curve():
    points = points_of(candidate(1, 0, 10.0), candidate(2, 1, 20.0), candidate(3, 0, 15.0))
    found = chart(points, ChartRequest(width=10))
    assert {one["name"]: values(one) for one in found["series"]} == {"t-abcdef-a0": [10.0, 15.0], "t-abcdef-a1": [20.0]}
    assert len(found["x"]) == 20
    assert found["points"] == 3


@pytest.mark.parametrize(
    ("axis", "end"), [(ChartAxis.SECONDS, 3.0), (ChartAxis.STEPS, 300.0), (ChartAxis.COMPUTE, 3.0)]
)
def test_a_curve_ends_at_its_furthest_position(axis, end):
    assert chart(points_of(candidate(1), candidate(3)), ChartRequest(axis=axis))["end"] == end


def test_a_repeated_submission_counts_once():
    assert points_of(candidate(1), candidate(1), candidate(2)).count == 2


def test_a_score_that_is_not_finite_is_left_out():
    assert points_of(candidate(1, score=float("nan"))).count == 0


def test_the_lead_changes_only_to_a_higher_estimate_that_is_on_the_board():
    points = points_of(
        candidate(1, 0, 10.0),
        candidate(2, 1, 50.0, verdict=VERDICT_REFUSED),
        candidate(3, 1, 60.0, verdict=VERDICT_HELD),
        candidate(4, 2, 70.0, estimate=9.0),
        candidate(5, 3, 30.0),
    )
    assert list(points.champion.scores) == [10.0, 30.0]
    assert points.champion_agents == ["t-abcdef-a0", "t-abcdef-a3"]


def test_the_champion_is_drawn_over_the_steps_of_all_agents():
    points = points_of(candidate(1, 0, 10.0), candidate(2, 1, 5.0), candidate(3, 1, 20.0))
    assert points.end(ChartAxis.STEPS) == (300.0, 400.0)
    found = chart(points, ChartRequest(of=Curves.CHAMPION, axis=ChartAxis.STEPS, width=4))
    assert found["end"] == 400.0
    assert values(found["series"][0])[-1] == 20.0


def test_a_family_has_a_median_and_quantiles():
    points = points_of(candidate(1, 0, 1.0), candidate(1 + 1, 1, 3.0))
    (family,) = chart(points, ChartRequest(of=Curves.FAMILIES, width=1))["series"]
    assert family["y"] == [2.0, None]
    assert family["low"][0] < family["y"][0] < family["high"][0]


def test_many_curves_get_fewer_buckets(monkeypatch):
    monkeypatch.setattr(curves, "MOST_VALUES", 200)
    points = points_of(*(candidate(number + 1, number) for number in range(4)))
    found = chart(points, ChartRequest(width=1000))
    assert len(found["x"]) <= 2 * max(200 // 8, curves.NARROWEST)


def test_of_too_many_curves_those_with_the_highest_scores_are_shown(monkeypatch):
    monkeypatch.setattr(curves, "MOST_CURVES", 2)
    points = points_of(*(candidate(number + 1, number, float(number)) for number in range(5)))
    found = chart(points, ChartRequest())
    assert [one["name"] for one in found["series"]] == ["t-abcdef-a3", "t-abcdef-a4"]
    assert found["left_out"] == 3


def test_an_empty_tournament_has_an_empty_chart():
    for kind in Curves:
        found = chart(points_of(), ChartRequest(of=kind))
        assert found["series"] == []


@pytest.mark.parametrize("kind", list(Curves))
def test_the_json_of_a_chart_is_the_chart_with_six_digits(kind):
    points = points_of(*(candidate(number + 1, number % 3, number / 7 - 1e-9 * number) for number in range(20)))
    found = chart(points, ChartRequest(of=kind, width=8))
    text = json.loads(chart_json(found | {"loaded": True, "version": 7}))
    assert (text["loaded"], text["version"], text["points"]) == (True, 7, 20)
    assert text["x"] == pytest.approx(found["x"], rel=1e-5)
    for one, expected in zip(text["series"], found["series"], strict=True):
        assert (one["name"], one["algorithm"]) == (expected["name"], expected["algorithm"])
        assert [v is None for v in one["y"]] == [v is None for v in expected["y"]]
        assert values(one) == pytest.approx(values(expected), rel=1e-5)


@pytest.mark.parametrize("score", [1e300, -1e300])
def test_a_score_that_a_column_cannot_hold_does_not_spoil_the_chart(score):
    points = points_of(candidate(1, 0, score), candidate(2, 1, 1.0))
    for kind in Curves:
        json.loads(chart_json(chart(points, ChartRequest(of=kind, width=4))), parse_constant=pytest.fail)


def test_a_name_cannot_leave_its_place_in_the_json():
    name = 'a","y":[1],"'
    text = chart_json({"x": [0.0], "series": [{"name": name, "algorithm": name, "y": [None]}], name: 1})
    assert json.loads(text) == {"x": [0], "series": [{"name": name, "algorithm": name, "y": [None]}], name: 1}
