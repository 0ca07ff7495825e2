"""Tests the learning rate schedule of every algorithm."""

from typing import Any

import pytest
import torch
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


DECREASE: dict[str, object] = {"learning_rate": 0.01, "final_learning_rate": 0.0, "learning_rate_steps": 1000}


def trained_on_policy(name: str, updates: int) -> Any:
    algorithm: Any = new_algorithm(name, "continuous", horizon=16, **DECREASE)
    course = Course(algorithm, "continuous")
    for _ in range(updates):
        algorithm.update(course.next())
    return algorithm


def next_rate(algorithm: Any) -> float:
    algorithm.update(Course(algorithm, "continuous", seed=1).next())
    return float(algorithm._optimizer.rate)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_child_with_another_horizon_continues_the_schedule_of_its_parent(name: str) -> None:
    child: Any = new_algorithm(name, "continuous", horizon=8, **DECREASE)
    child.load_state_dict(trained_on_policy(name, 3).state_dict())
    assert child.environment_steps == 3 * 16 * LANES
    assert next_rate(child) == pytest.approx(0.01 * (1.0 - 3 * 16 * LANES / 1000))
    assert child.environment_steps == (3 * 16 + 8) * LANES


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_state_without_counted_steps_continues_as_if_all_rollouts_had_been_of_the_present_size(name: str) -> None:
    state = trained_on_policy(name, 3).state_dict()
    del state["environment_steps"]
    resumed: Any = new_algorithm(name, "continuous", horizon=16, **DECREASE)
    resumed.load_state_dict(state)
    again: Any = new_algorithm(name, "continuous", horizon=16, **DECREASE)
    again.load_state_dict(resumed.state_dict())
    assert next_rate(resumed) == next_rate(again) == pytest.approx(0.01 * (1.0 - 3 * 16 * LANES / 1000))
    assert resumed.environment_steps == again.environment_steps == 4 * 16 * LANES


def adapted(**settings: object) -> Any:
    return new_algorithm("ppo", "continuous", desired_kl=10.0, **settings)


def test_a_child_with_half_the_learning_rate_begins_with_half_the_adapted_rate_of_its_parent() -> None:
    parent, child, own = adapted(learning_rate=1e-3), adapted(learning_rate=5e-4), adapted(learning_rate=5e-4)
    next_rate(parent)
    child.load_state_dict(parent.state_dict())
    assert float(parent._optimizer.rate) == pytest.approx(1.5e-3)
    assert float(child._optimizer.rate) == pytest.approx(0.75e-3)
    # A continuation of the child has the hyperparameter of its state.
    own.load_state_dict(child.state_dict())
    assert torch.equal(own._optimizer.rate, child._optimizer.rate)


@pytest.mark.parametrize("rate", [1e-3, 7e-5])
def test_a_continuation_has_the_adapted_rate_to_the_bit(rate: float) -> None:
    algorithm, resumed, old = (adapted(learning_rate=rate) for _ in range(3))
    next_rate(algorithm)
    state = algorithm.state_dict()
    resumed.load_state_dict(state)
    assert torch.equal(resumed._optimizer.rate, algorithm._optimizer.rate)
    del state["initial_learning_rate"]
    old.load_state_dict(state)
    assert torch.equal(old._optimizer.rate, algorithm._optimizer.rate)


def test_two_schedules_for_the_learning_rate_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="desired_kl and learning_rate_steps both change the learning rate"):
        new_algorithm("ppo", "continuous", desired_kl=0.01, learning_rate_steps=1000)
