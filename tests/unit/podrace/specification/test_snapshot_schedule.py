"""When snapshots are due, and which periods a specification may have."""

import math

import pytest

from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.specification import resolve, snapshot_schedule
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec, TournamentSpec


def resolved(period: object) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"target_return": 475},
        "evaluation": {"snapshot_period": period},
    }
    return resolve.resolve(resolve.parse(values, source="test.toml"))


def test_snapshot_k_is_due_once_after_k_periods():
    schedule = snapshot_schedule.SnapshotSchedule(2.0, last=0)
    taken = []
    for tenths in range(0, 75):
        number = schedule.due(tenths / 10)
        if number:
            taken.append((tenths / 10, number))
            schedule.last = number
    assert taken == [(2.0, 1), (4.0, 2), (6.0, 3)]


def test_if_several_snapshots_were_missed_only_the_last_is_due():
    assert snapshot_schedule.SnapshotSchedule(2.0, last=1).due(9.5) == 4


def test_no_snapshot_is_due_twice_when_the_clock_is_set_back():
    schedule = snapshot_schedule.SnapshotSchedule(2.0, last=3)
    assert schedule.due(5.0) == 0
    assert schedule.due(7.9) == 0
    assert schedule.due(8.0) == 4


def test_a_pod_that_takes_over_continues_with_the_numbers_of_the_previous_pod():
    first = snapshot_schedule.SnapshotSchedule(2.0, last=snapshot_schedule.periods_passed(0.5, 2.0))
    assert first.due(6.1) == 3
    second = snapshot_schedule.SnapshotSchedule(2.0, last=snapshot_schedule.periods_passed(6.4, 2.0))
    assert second.due(7.9) == 0
    assert second.due(8.1) == 4


@pytest.mark.parametrize("period", [0.1, 0.7, 1.1, 3.3])
def test_rounding_of_floats_does_not_delay_a_snapshot(period):
    for number in range(1, 200):
        assert snapshot_schedule.periods_passed(sum([period] * number), period) == number


def test_without_a_period_there_are_no_snapshots():
    assert snapshot_schedule.period_seconds(EvaluationSpec()) is None
    assert snapshot_schedule.period_seconds(resolved("90s").evaluation) == 90.0
    assert snapshot_schedule.period_seconds(resolved(1.5).evaluation) == 1.5


@pytest.mark.parametrize("period", ["999ms", "1ms", 0.5])
def test_a_period_below_a_second_is_refused_with_the_reason(period):
    with pytest.raises(
        InvalidArgument, match=r"evaluation\.snapshot_period = 0\.\d+ s: expected at least 1 s, because"
    ) as e:
        resolved(period)
    assert e.value.reason == BAD_SPEC


@pytest.mark.parametrize("period", ["soon", "-1s", 0, True, "1 s"])
def test_an_invalid_period_is_refused(period):
    with pytest.raises(InvalidArgument, match=r"evaluation\.snapshot_period"):
        resolved(period)


# --- checkpoints between evaluations ------------------------------------------------------------------------------


def with_checkpoints(**values: object) -> TournamentSpec:
    given = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1000},
        **values,
    }
    return resolve.resolve(resolve.parse(given, source="test.toml"))


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 60.0),
        ({"assignment": {"checkpoint_period": "90s"}}, 90.0),
        ({"assignment": {"checkpoint_period": 1}}, 1.0),
        ({"synchronous": True, "pool": {"maximum_pods": 1}}, math.inf),
    ],
)
def test_checkpoints_are_stored_at_least_once_a_minute_unless_the_specification_says_otherwise(
    values: dict[str, object], seconds: float
) -> None:
    assert snapshot_schedule.checkpoint_seconds(with_checkpoints(**values)) == seconds


def test_a_specification_that_an_earlier_version_resolved_has_checkpoints_with_scores_only() -> None:
    assert snapshot_schedule.checkpoint_seconds(TournamentSpec()) == math.inf


def test_checkpoints_more_often_than_once_a_second_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"assignment\.checkpoint_period = 0\.5 s: expected at least 1 s") as e:
        with_checkpoints(assignment={"checkpoint_period": "500ms"})
    assert e.value.reason == BAD_SPEC
