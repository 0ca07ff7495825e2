"""What an episode is worth, and the penalty for folds, as a specification may set them."""

from typing import Any

import pytest
import torch

from podrace.errors import InvalidArgument
from podrace.specification.objectives import MEASURES
from podrace.specification.resolve import parse, resolve
from simulators.stocks.episodes import EpisodeMeasures

FOLDED = {"folds": 3, "train_end": "2010-01-01", "validation_end": "2011-07-01"}


def spec(evaluation: dict[str, Any], environment: dict[str, Any] | None = None, id: str = "stocks", **more: Any) -> Any:
    return resolve(
        parse(
            {
                "environment": {"id": id, "options": FOLDED if environment is None else environment},
                "algorithms": {"ppo": {}},
                "objective": {"wall_clock_duration": "1s"},
                "evaluation": {"options": {"split": "validation"}, **evaluation},
                **more,
            },
            source="spec",
        )
    )


def test_the_default_is_the_return_without_a_penalty() -> None:
    evaluation = spec({}).evaluation
    assert (evaluation.objective, evaluation.fold_deviations) == ("return", 0.0)
    assert spec({}, {}, "CartPole-v1").evaluation.objective == "return"


@pytest.mark.parametrize("name", MEASURES["stocks"])
def test_every_measure_of_the_stock_simulator_can_be_the_objective(name: str) -> None:
    assert spec({"objective": name, "fold_deviations": 0.5}).evaluation.objective == name


def test_the_listed_measures_are_those_that_the_stock_simulator_reports() -> None:
    measures = EpisodeMeasures(1, None, (1,), torch.device("cpu"))
    assert measures.report().keys() == {*MEASURES["stocks"], "fold"}


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (
            {"objective": "sharpe"},
            r"evaluation\.objective = 'sharpe': the simulator 'stocks' does not report .* return, cumulative_return, ",
        ),
        ({"objective": "fold"}, "does not report this"),
        (
            {"objective": "sharpe_ratio", "options": {"split": "train"}},
            r"set evaluation\.options\.split = 'validation'",
        ),
        ({"objective": "sharpe_ratio", "evaluator": "python:a:b"}, "the evaluator plugin decides"),
        ({"fold_deviations": 1.0, "evaluator": "python:a:b"}, "the evaluator plugin decides the score"),
        ({"fold_deviations": 11.0}, r"evaluation\.fold_deviations = 11: expected 0 to 10"),
        ({"fold_deviations": -1.0}, r"evaluation\.fold_deviations = -1: expected 0 to 10"),
        ({"fold_deviations": 1.0, "episodes": 1025}, r"evaluation\.episodes = 1025: at most 1024 with"),
        ({"fold_deviations": 1.0, "options": {"split": "validation", "fold": 1}}, "needs several validation folds"),
        ({"fold_deviations": 1.0, "options": {}}, "needs several validation folds"),
    ],
)
def test_what_cannot_be_scored_is_refused(evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        spec(evaluation)


@pytest.mark.parametrize("environment", [{}, {"folds": 1}])
def test_a_penalty_needs_several_folds(environment: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"fold_deviations = 0\.5: needs several validation folds"):
        spec({"fold_deviations": 0.5}, environment)


def test_the_champion_is_rescored_on_episodes_whose_folds_are_listed() -> None:
    with pytest.raises(InvalidArgument, match=r"champion\.reevaluate_episodes = 2000: at most 1024"):
        spec({"fold_deviations": 0.5}, champion={"reevaluate_episodes": 2000})


def test_simulators_without_measures_have_no_other_objective() -> None:
    with pytest.raises(InvalidArgument, match=r"'CartPole-v1' does not report .*; use one of: return$"):
        spec({"objective": "sharpe_ratio"}, {}, "CartPole-v1")
    with pytest.raises(InvalidArgument, match="'CartPole-v1' has no folds"):
        spec({"fold_deviations": 1.0}, {}, "CartPole-v1")


@pytest.mark.parametrize("id", ["python:desk:make", "grpc://127.0.0.1:1"])
def test_what_a_users_simulator_reports_is_checked_by_the_evaluator(id: str) -> None:
    assert spec({"objective": "profit", "fold_deviations": 1.0}, {}, id).evaluation.objective == "profit"
