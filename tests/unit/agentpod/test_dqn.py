"""What the DQN family has alone: a learning rate that falls."""

from typing import Any

import pytest
from experience import LANES, Course, new_algorithm

FAMILY = pytest.mark.parametrize("name", ["dqn", "double-dqn", "dueling-dqn", "d3qn"])
SEGMENT_STEPS = 8 * LANES


def learning_rate(algorithm: Any) -> float:
    (optimizer,) = algorithm._optimizers()
    return float(optimizer.rate)


@FAMILY
def test_the_learning_rate_falls_with_the_steps_of_all_environments_to_its_share_and_stays(name: str) -> None:
    settings = {"learning_rate": 0.01, "final_learning_rate": 0.2, "learning_rate_steps": 4 * SEGMENT_STEPS}
    algorithm: Any = new_algorithm(name, "discrete", **settings)
    course, found = Course(algorithm, "discrete"), [learning_rate(algorithm)]
    for _ in range(6):
        algorithm.update(course.next())
        found.append(learning_rate(algorithm))
    assert algorithm.environment_steps == 6 * SEGMENT_STEPS
    assert found == pytest.approx([0.01, 0.008, 0.006, 0.004, 0.002, 0.002, 0.002])


@FAMILY
def test_a_resumed_agent_goes_on_at_the_rate_it_had_come_to(name: str) -> None:
    settings = {"learning_rate": 0.01, "final_learning_rate": 0.0, "learning_rate_steps": 4 * SEGMENT_STEPS}
    algorithm: Any = new_algorithm(name, "discrete", **settings)
    course = Course(algorithm, "discrete")
    for _ in range(3):
        algorithm.update(course.next())
    resumed: Any = new_algorithm(name, "discrete", **settings)
    resumed.load_state_dict(algorithm.state_dict())
    assert learning_rate(resumed) == pytest.approx(0.0025)


@FAMILY
def test_without_a_number_of_steps_the_learning_rate_stays(name: str) -> None:
    algorithm: Any = new_algorithm(name, "discrete", learning_rate=0.01, final_learning_rate=0.2)
    course = Course(algorithm, "discrete")
    for _ in range(3):
        algorithm.update(course.next())
    assert learning_rate(algorithm) == pytest.approx(0.01)
