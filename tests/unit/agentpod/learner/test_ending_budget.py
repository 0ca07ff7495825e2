"""When the training of an assignment ends."""

import math
from typing import Any

import pytest

from agentpod.learner.ending import Budget
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1.orchestrator_pb2 import Assignment
from podrace.specification import resolve as specification


def assignment(own_steps: int = 0, maximum: int = 0, **sections: Any) -> Assignment:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"wall_clock_duration": "100s"},
        "assignment": {"environment_steps": 1000},
    }
    spec = specification.resolve(specification.parse(values | sections, source="test"))
    agent = Agent(assignment_environment_steps=own_steps)
    return Assignment(spec=spec, train=agent, maximum_environment_steps=maximum)


@pytest.mark.parametrize(
    ("own", "maximum", "expected"), [(0, 0, 1000), (5000, 0, 5000), (0, 300, 300), (200, 300, 200), (0, 3000, 1000)]
)
def test_an_agent_trains_its_own_steps_and_never_more_than_the_objective_leaves(own, maximum, expected):
    budget = Budget.of(assignment(own, maximum))
    assert not budget.used_up(expected - 1, 0.0)
    assert budget.used_up(expected, 0.0)


def test_a_duration_limits_the_training_time():
    budget = Budget.of(assignment(assignment={"environment_steps": 1000, "duration": "5s"}))
    assert not budget.used_up(0, 4.9)
    assert budget.used_up(0, 5.0)
    assert not Budget.of(assignment()).used_up(0, 1e9)


def test_the_last_evaluation_is_reserved_before_the_tournament_ends():
    budget = Budget.of(assignment())
    # One and a half evaluations of 4 s, and a second to publish.
    assert not budget.must_score(92.9, 4.0)
    assert budget.must_score(93.0, 4.0)


def test_before_the_first_evaluation_a_share_of_the_clock_is_reserved():
    budget = Budget.of(assignment())
    assert not budget.must_score(93.9, 0.0)
    assert budget.must_score(94.0, 0.0)
    longest = Budget.of(assignment(objective={"wall_clock_duration": "10000s"}))
    assert not longest.must_score(9968.9, 0.0)
    assert longest.must_score(9969.0, 0.0)


def test_nothing_is_reserved_without_a_clock():
    assert not Budget.of(assignment(objective={"environment_steps": 10})).must_score(1e9, 1.0)
    assert not Budget.of(assignment()).must_score(None, 1.0)
    synchronous = assignment(synchronous=True, pool={"maximum_pods": 1})
    assert math.isinf(Budget.of(synchronous).tournament_seconds)
