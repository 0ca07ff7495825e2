"""Tests the learning rate schedule of every algorithm."""

from typing import Any

import pytest
from experience import LANES, Course, new_algorithm

from podrace.errors import InvalidArgument

OFF_POLICY = pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dqn", "discrete"),
        ("d3qn", "discrete"),
        ("sac-discrete", "discrete"),
        ("td3", "continuous"),
        ("sac", "continuous"),
    ],
)
SEGMENT_STEPS = 8 * LANES


def learning_rate(algorithm: Any) -> float:
    (rate,) = {float(optimizer.rate) for optimizer in algorithm._optimizers()}
    return rate


@OFF_POLICY
def test_the_learning_rate_falls_with_environment_steps_to_its_final_fraction(name: str, kind: str) -> None:
    settings = {"learning_rate": 0.01, "final_learning_rate": 0.2, "learning_rate_steps": 4 * SEGMENT_STEPS}
    algorithm: Any = new_algorithm(name, kind, horizon=8, **settings)
    course, found = Course(algorithm, kind), [learning_rate(algorithm)]
    for _ in range(6):
        algorithm.update(course.next())
        found.append(learning_rate(algorithm))
    assert algorithm.environment_steps == 6 * SEGMENT_STEPS
    assert found == pytest.approx([0.01, 0.008, 0.006, 0.004, 0.002, 0.002, 0.002])


@OFF_POLICY
def test_a_resumed_agent_continues_its_schedule(name: str, kind: str) -> None:
    settings = {"learning_rate": 0.01, "final_learning_rate": 0.0, "learning_rate_steps": 4 * SEGMENT_STEPS}
    algorithm: Any = new_algorithm(name, kind, horizon=8, **settings)
    course = Course(algorithm, kind)
    for _ in range(3):
        algorithm.update(course.next())
    resumed: Any = new_algorithm(name, kind, horizon=8, **settings)
    resumed.load_state_dict(algorithm.state_dict())
    assert learning_rate(resumed) == pytest.approx(0.0025)


@OFF_POLICY
def test_without_learning_rate_steps_the_rate_is_constant(name: str, kind: str) -> None:
    algorithm: Any = new_algorithm(name, kind, horizon=8, learning_rate=0.01, final_learning_rate=0.2)
    course = Course(algorithm, kind)
    for _ in range(3):
        algorithm.update(course.next())
    assert learning_rate(algorithm) == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_the_learning_rate_falls_in_on_policy_algorithms(name: str) -> None:
    settings = {"learning_rate": 0.01, "final_learning_rate": 0.2, "learning_rate_steps": 4 * SEGMENT_STEPS}
    if name == "ppo":
        settings |= {"minibatch_size": LANES}
    algorithm: Any = new_algorithm(name, "continuous", horizon=8, **settings)
    course, found = Course(algorithm, "continuous"), []
    for _ in range(6):
        algorithm.update(course.next())
        found.append(float(algorithm._optimizer.rate))
    assert found == pytest.approx([0.01, 0.008, 0.006, 0.004, 0.002, 0.002])


def test_two_schedules_for_the_learning_rate_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="desired_kl and learning_rate_steps both change the learning rate"):
        new_algorithm("ppo", "continuous", desired_kl=0.01, learning_rate_steps=1000)
