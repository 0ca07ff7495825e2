from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpod.liveness.deadlines import Observation, judge, percentile_99, usual_longest
from agentpod.liveness.role_watch import SAMPLES
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.progress_deadlines import ProgressDeadlines

OPTIONS = ProgressDeadlines(multiple=10.0, floor_seconds=10.0, ceiling_seconds=600.0)
NOW = 1000.0


def seen(waited: float, phase: pb.RolePhase.ValueType = pb.ROLE_PHASE_COLLECTING, **changes: Any) -> Observation:
    return Observation(phase, NOW - waited, **{"history": [1.0] * 100, **changes})


@pytest.mark.parametrize(
    ("history", "deadline"),
    [([0.1] * 100, 10.0), ([3.0] * 100, 30.0), ([300.0] * 100, 600.0), ([1.0, 1.0], 600.0), ([], 600.0)],
)
def test_the_deadline_is_a_multiple_of_the_99th_percentile_within_floor_and_ceiling(
    history: list[float], deadline: float
) -> None:
    assert judge(NOW, seen(0.0, history=history), OPTIONS).deadline_seconds == deadline


def test_a_role_is_stuck_from_its_deadline_on() -> None:
    assert not judge(NOW, seen(9.9), OPTIONS).stuck
    assert judge(NOW, seen(10.0), OPTIONS).stuck


@pytest.mark.parametrize("phase", [pb.ROLE_PHASE_OPENING, pb.ROLE_PHASE_PREPARING, pb.ROLE_PHASE_WARMING_UP])
def test_a_role_that_may_compile_gets_the_longest_deadline(phase: pb.RolePhase.ValueType) -> None:
    assert not judge(NOW, seen(599.0, phase), OPTIONS).stuck
    assert judge(NOW, seen(600.0, phase), OPTIONS).stuck


@pytest.mark.parametrize("phase", [pb.ROLE_PHASE_WARMING_UP, pb.ROLE_PHASE_COLLECTING, pb.ROLE_PHASE_UNSPECIFIED])
def test_a_stopped_process_is_stuck_after_the_shortest_deadline(phase: pb.RolePhase.ValueType) -> None:
    verdict = judge(NOW, seen(10.0, phase, history=[50.0] * 9, stopped=True, answers=False), OPTIONS)
    assert verdict.stuck
    assert "its process is stopped" in verdict.reason


def test_each_false_alarm_doubles_the_deadline_up_to_the_ceiling() -> None:
    assert judge(NOW, seen(0.0, stuck_before=2), OPTIONS).deadline_seconds == 40.0
    assert judge(NOW, seen(0.0, stuck_before=9), OPTIONS).deadline_seconds == 600.0


def test_the_reason_names_phase_and_deadline() -> None:
    assert judge(NOW, seen(12.0, answers=False), OPTIONS).reason == (
        "it does not answer: 12.0 s in phase collecting; the deadline is 10.0 s (10 times the 99th percentile of 100"
        " samples, 1.00 s)"
    )


@pytest.mark.parametrize(("samples", "expected"), [([5.0], 5.0), (range(1, 101), 99.0), (range(1, 201), 198.0)])
def test_at_most_one_percent_of_the_samples_are_above_the_99th_percentile(samples: Any, expected: float) -> None:
    assert percentile_99(list(samples)) == expected


@pytest.mark.parametrize(
    ("samples", "expected"), [([1.0] * 18 + [30.0], 30.0), ([1.0] * 19 + [30.0], 1.0), (range(1, 201), 198.0)]
)
def test_of_20_samples_and_more_the_longest_may_be_an_exception(samples: Any, expected: float) -> None:
    assert usual_longest(list(samples)) == expected


@pytest.mark.parametrize("count", [20, 99, 100, SAMPLES])
def test_after_a_single_pause_the_deadline_is_twice_that_pause(count: int) -> None:
    verdict = judge(NOW, seen(0.0, history=[1.0] * (count - 1) + [30.0]), OPTIONS)
    assert verdict.deadline_seconds == 60.0
    assert f"the deadline is 60.0 s (2 times the longest of {count} samples, 30.00 s)" in verdict.reason


def test_after_several_pauses_the_deadline_is_a_multiple_of_them() -> None:
    assert judge(NOW, seen(0.0, history=[1.0] * 50 + [30.0, 25.0]), OPTIONS).deadline_seconds == 250.0


@given(
    period=st.integers(1, SAMPLES),
    first=st.integers(0, SAMPLES),
    times=st.integers(1, 5),
    fast=st.floats(0.01, 5.0),
    slow=st.floats(0.01, 300.0),
    longer=st.floats(1.0, 1.9),
)
def test_a_step_that_is_slow_at_regular_intervals_is_never_stuck(
    period: int, first: int, times: int, fast: float, slow: float, longer: float
) -> None:
    """It may take up to 1.9 times as long as before."""
    samples = [fast] * first + ([slow] + [fast] * (period - 1)) * times
    history = samples[-SAMPLES:]
    assert not judge(NOW, seen(slow * longer, history=[fast] * 2 + history), OPTIONS).stuck
