import importlib
from typing import Any

import pytest


@pytest.fixture(scope="module")
def curves() -> Any:
    return importlib.import_module("pools.curves")


def test_a_curve_passes_through_its_points_and_never_falls(curves: Any) -> None:
    curve = curves.Curve([(100, 5.0), (0, 1.0), (200, 3.0), (300, 9.0)])
    assert [curve.score_at(steps) for steps in (-1, 0, 50, 100, 150, 250, 300, 999)] == [1, 1, 3, 5, 5, 7, 9, 9]


def test_steps_to_a_score_end_where_the_curve_first_reaches_it(curves: Any) -> None:
    curve = curves.Curve([(10, 1.0), (110, 5.0), (310, 9.0)])
    for score in (1.0, 2.0, 5.0, 6.5, 9.0):
        assert curve.score_at(curve.steps_to(score)) == score
    assert (curve.steps_to(-3.0), curve.steps_to(99.0)) == (0.0, 310)


def test_a_curve_without_points_is_refused(curves: Any) -> None:
    with pytest.raises(ValueError, match="record it again"):
        curves.Curve([])


def test_agents_follow_the_curves_in_turn(curves: Any) -> None:
    some = curves.Curves([[(0, 1.0)], [(0, 2.0)]])
    assert [some.of(number).score_at(0) for number in range(5)] == [1, 2, 1, 2, 1]


def test_a_child_starts_with_its_parents_score_and_continues_its_parents_curve(curves: Any) -> None:
    both = curves.Curves([[(0, 0.0), (100, 10.0)], [(0, 0.0), (100, 100.0)]])
    parent = curves.SimulatedLearner(both, 1, 0, 0, None)
    parent.steps = 50
    child = curves.SimulatedLearner(both, parent.number, 0, parent.lineage_steps, parent.score)
    assert (child.score, child.lineage_steps) == (50.0, 50)
    child.steps = 10
    assert (child.score, child.lineage_steps) == (60.0, 60)


def test_an_agent_that_moves_to_another_pod_continues_at_its_steps(curves: Any) -> None:
    agent = curves.SimulatedLearner(curves.Curves([[(0, 0.0), (100, 100.0)]]), 0, 30, 70, 40.0)
    assert agent.score == 40.0
    agent.steps = 35
    assert (agent.score, agent.lineage_steps) == (45.0, 105)


def test_a_child_is_never_worse_than_its_parent(curves: Any) -> None:
    child = curves.SimulatedLearner(curves.Curves([[(0, 0.0), (100, 10.0)]]), 0, 0, 0, 50.0)
    child.steps = 40
    assert child.score == 50.0


def test_an_agent_is_scored_between_rollouts_and_at_the_end_of_its_budget(curves: Any) -> None:
    # Like a pod that steps 16 environments 128 times per rollout and scores every 50,000 steps of 100,000.
    assert [curves.due_steps(steps, 50_000, 100_000, 2048) for steps in (0, 51_199, 51_200)] == [
        51_200,
        100_352,
        100_352,
    ]
    assert curves.due_steps(0, 120, 100, 1) == 100
