"""Learning rate schedules of users: what they set, and what is wrong with them in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from experience import Course, new_algorithm

from agentpod import rate_schedules
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.specification import check_specification
from podrace.limits.user_code import imports_user_code
from podrace.specification.declared_algorithms import SCHEDULE, names_code
from podrace.specification.resolve import parse, resolve

SOURCE = """
def halving(environment_steps):
    return 0.5 ** (environment_steps / 32)


def negative(environment_steps):
    return -1.0


def raising(environment_steps):
    return 1 / environment_steps


def huge(environment_steps):
    return 10**5000
"""
HALVING = "python:own_schedules:halving"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_schedules.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    rate_schedules._function.cache_clear()
    yield
    sys.modules.pop("own_schedules", None)


def rates(algorithm: Any) -> list[float]:
    optimizers = algorithm._optimizers() if hasattr(algorithm, "_optimizers") else [algorithm._optimizer]
    return sorted({float(one.rate) for one in optimizers})


@pytest.mark.parametrize(("name", "kind"), [("ppo", "discrete"), ("a2c", "continuous"), ("sac", "continuous")])
def test_the_learning_rate_is_that_of_the_schedule_also_after_a_resume(name: str, kind: str) -> None:
    settings: dict[str, object] = {"learning_rate": 0.01, "learning_rate_schedule": HALVING}
    algorithm: Any = new_algorithm(name, kind, **settings)
    course = Course(algorithm, kind)
    for _ in range(2):
        algorithm.update(course.next())
    # Eight steps of four environments are one rollout.
    resumed: Any = new_algorithm(name, kind, **settings)
    resumed.load_state_dict(algorithm.state_dict())
    algorithm.update(course.next())
    resumed.refresh()
    on_policy = not algorithm.memory.replay_capacity
    # An on-policy algorithm sets the rate before an update, an off-policy one after it.
    assert rates(algorithm) == pytest.approx([0.01 * 0.5 ** (2 if on_policy else 3)])
    if not on_policy:
        assert rates(resumed) == pytest.approx([0.01 * 0.5**2])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("negative", "own_schedules.negative (own_schedules.py:6) returned -1.0 for 0 steps, expected a number of at"),
        ("raising", "own_schedules.raising (own_schedules.py:11) raised ZeroDivisionError: division by zero"),
        ("huge", "own_schedules.huge (own_schedules.py:14) returned an integer above every float for 0 steps"),
        ("absent", "= 'python:own_schedules:absent': module 'own_schedules' has no function 'absent'"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_reported_in_one_line_with_its_name_and_line(
    function: str, message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        rate_schedules.factor(f"python:own_schedules:{function}", 0)
    assert caught.value.reason == UNUSABLE_ALGORITHM
    assert caught.value.message.startswith("learning_rate_schedule")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_two_ways_to_change_the_learning_rate_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="learning_rate_schedule and learning_rate_steps both change"):
        new_algorithm("sac", "continuous", learning_rate_schedule=HALVING, learning_rate_steps=100)
    with pytest.raises(InvalidArgument, match="desired_kl and learning_rate_schedule both change"):
        new_algorithm("ppo", "discrete", learning_rate_schedule=HALVING, desired_kl=0.01)


def test_a_schedule_runs_with_the_token_of_a_pod_so_services_accept_installed_ones_only() -> None:
    chosen = {"ppo": {"hyperparameters": {"learning_rate_schedule": HALVING}}}
    values = {"environment": {"id": "cartpole"}, "algorithms": chosen, "objective": {"environment_steps": 10}}
    spec = resolve(parse(values, source="test"))
    with pytest.raises(InvalidArgument, match=r"learning_rate_schedule = 'python:own_.*podrace\.schedules"):
        check_specification(spec, Allowed(modules=("own_schedules",)))
    check_specification(spec, EVERYTHING)
    assert imports_user_code(spec)
    assert names_code(spec, SCHEDULE, HALVING)
    assert not names_code(spec, SCHEDULE, "python:subprocess:run")
