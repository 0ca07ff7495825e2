from typing import Any

import pytest

from agentpod.process.inspection import violations
from podrace.limits.config import EVERYTHING
from podrace.specification.resolve import parse, resolve


def found(**values: Any) -> dict[str, str]:
    """What is wrong with a specification, by key."""
    given = {"environment": {"id": "cartpole"}, "algorithms": {"ppo": {}}, "objective": {"target_return": 1.0}} | values
    spec = resolve(parse(given, source="test"))
    return {one.field: one.problem for one in violations(spec, EVERYTHING)}


def test_a_specification_that_works_has_no_violations() -> None:
    assert found() == {}


def test_an_unknown_environment_is_named() -> None:
    problems = found(environment={"id": "CartPol-v1"})
    assert list(problems) == ["environment.id"]
    assert "did you mean 'CartPole-v1'?" in problems["environment.id"]


def test_everything_that_is_wrong_is_found_at_once() -> None:
    problems = found(
        environment={"id": "CartPole-v1", "options": {"nonsense": 1}},
        algorithms={"ppo": {}, "sac": {}, "dqn": {}},
        evaluation={"evaluator": "python:absent_module:function"},
    )
    assert sorted(problems) == ["algorithms.sac", "environment.options", "evaluation.evaluator"]
    assert "unknown option 'nonsense'" in problems["environment.options"]
    assert "needs continuous actions" in problems["algorithms.sac"]
    assert "absent_module" in problems["evaluation.evaluator"]


def test_options_of_evaluations_and_reports_are_tried_too() -> None:
    problems = found(
        environment={"id": "CartPole-v1"},
        evaluation={"options": {"wrong": 1}},
        reports={"later": {"options": {"wrong": 2}}, "fine": {"options": {"max_episode_steps": 10}}},
    )
    assert sorted(problems) == ["evaluation.options", "reports.later.options"]


@pytest.mark.parametrize("captured", [True, False])
def test_an_option_for_gpus_is_no_problem_where_there_is_none(captured: bool) -> None:
    stocks = {"id": "stocks", "options": {"path": "synthetic:minute?symbols=3&days=60", "captured": captured}}
    assert found(environment=stocks) == {}


def test_a_torso_for_images_does_not_suit_a_vector() -> None:
    problems = found(algorithms={"ppo": {"hyperparameters": {"torso": "nature"}}})
    assert list(problems) == ["algorithms.ppo"]


def test_an_environment_that_raises_anything_is_a_problem_on_one_line(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_world.py").write_text("def make():\n    raise KeyError('first\\nsecond')\n")
    monkeypatch.syspath_prepend(tmp_path)
    problems = found(environment={"id": "python:broken_world:make"})
    assert list(problems) == ["environment.id"]
    assert "KeyError" in problems["environment.id"]
    assert "\n" not in problems["environment.id"]
