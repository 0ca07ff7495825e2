"""No agent is trained or selected on the data that is reserved for reports."""

from typing import Any

import pytest

from podrace.config import read_toml
from podrace.errors import InvalidArgument
from podrace.specification.resolve import parse, resolve


def spec(environment: dict[str, Any], evaluation: dict[str, Any], reports: dict[str, Any], id: str = "stocks") -> Any:
    return resolve(
        parse(
            {
                "environment": {"id": id, "options": environment},
                "algorithms": {"ppo": {}},
                "objective": {"wall_clock_duration": "1s"},
                "evaluation": {"options": evaluation},
                "reports": {"end": {"options": reports}},
            },
            source="spec",
        )
    )


CUT = {"train_end": "2010-01-01", "validation_end": "2011-07-01"}


def test_the_backtest_split_is_allowed_only_in_reports() -> None:
    given = {**CUT, "split": "train"}
    assert spec(given, {"split": "validation"}, {"split": "backtest"}).reports["end"].options["split"] == "backtest"
    with pytest.raises(
        InvalidArgument, match=r"evaluation\.options\.split = 'backtest': .*use this split only in \[reports\]"
    ):
        spec(given, {"split": "backtest"}, {})
    with pytest.raises(InvalidArgument, match=r"environment\.options\.split = 'backtest': agents would be trained"):
        spec({**CUT, "split": "backtest"}, {"split": "validation"}, {})


def test_the_backtest_split_is_also_refused_for_a_users_environment() -> None:
    with pytest.raises(InvalidArgument, match="the data that tests the champion"):
        spec({}, {"split": "backtest"}, {}, id="python:desk:make")


@pytest.mark.parametrize(("name", "value"), [("validation_end", "2013-03-01"), ("path", "all.npz")])
def test_evaluation_cannot_move_the_boundaries_of_the_splits(name: str, value: str) -> None:
    expected = rf"evaluation\.options\.{name} = '.*set it only in \[environment\.options\]"
    with pytest.raises(InvalidArgument, match=expected):
        spec(CUT, {"split": "validation", name: value}, {})


def test_the_rules_also_apply_behind_a_simulator_service() -> None:
    service = {**CUT, "id": "stocks"}
    with pytest.raises(InvalidArgument, match=r"evaluation\.options\.validation_end"):
        spec(service, {"split": "validation", "validation_end": "2013-01-01"}, {}, id="grpc://market:50070")
    with pytest.raises(InvalidArgument, match=r"reports\.end\.options\.validation_end"):
        spec(service, {}, {"split": "backtest", "validation_end": "2008-01-01"}, id="grpc://market:50070")
    assert spec({**CUT, "id": "desk"}, {"path": "elsewhere"}, {}, id="grpc://market:50070")


@pytest.mark.parametrize(
    ("name", "value"), [("folds", 4), ("embargo_bars", 5), ("tickers", ["AAPL"]), ("turbulence_days", 100)]
)
def test_evaluation_cannot_move_the_folds(name: str, value: object) -> None:
    expected = rf"evaluation\.options\.{name} = .*selected on the data that they are trained on; set it only in"
    with pytest.raises(InvalidArgument, match=expected):
        spec({**CUT, "folds": 3}, {"split": "validation", name: value}, {})


def test_evaluation_cannot_have_folds_that_training_does_not_leave_out() -> None:
    with pytest.raises(InvalidArgument, match=r"evaluation\.options\.folds = 3.*that they are trained on"):
        spec(CUT, {"split": "validation", "folds": 3}, {})


def test_evaluation_may_play_one_fold_and_shorter_episodes() -> None:
    assert spec({**CUT, "folds": 3}, {"split": "validation", "fold": 2, "episode_days": 20}, {"split": "backtest"})


def test_evaluation_may_repeat_the_boundaries_of_the_environment() -> None:
    assert spec(CUT, {"split": "validation", **CUT, "episode_days": 126}, {"split": "backtest"})


def test_other_simulators_may_have_options_with_the_same_names() -> None:
    assert spec({}, {"path": "elsewhere"}, {}, id="python:desk:make")


def test_the_stocks_example_uses_the_backtest_split_only_in_its_report() -> None:
    from pathlib import Path

    path = Path(__file__).parents[4] / "examples" / "stocks.toml"
    assert resolve(parse(read_toml(path), source=path.name)).reports["backtest"].options["split"] == "backtest"


@pytest.mark.parametrize(
    ("name", "value"), [("validation_end", "2008-01-01"), ("validation_end", "soon"), ("path", "all.npz")]
)
def test_a_backtest_cannot_contain_data_that_agents_are_trained_on(name: str, value: str) -> None:
    expected = rf"reports\.end\.options\.{name} = '.*trained or selected on; set it only in \[environment\.options\]"
    with pytest.raises(InvalidArgument, match=expected):
        spec(CUT, {"split": "validation"}, {"split": "backtest", name: value})


@pytest.mark.parametrize("folds", [0, 5])
def test_a_report_on_the_folds_cannot_move_them(folds: int) -> None:
    with pytest.raises(InvalidArgument, match=r"reports\.end\.options\.folds = .*trained or selected on"):
        spec({**CUT, "folds": 3}, {"split": "validation"}, {"split": "validation", "folds": folds})


def test_a_report_on_validation_data_cannot_begin_earlier() -> None:
    with pytest.raises(InvalidArgument, match=r"reports\.end\.options\.train_end"):
        spec({**CUT, "split": "validation"}, {}, {"train_end": "2009-01-01"})


@pytest.mark.parametrize("report", [{"validation_end": "2012-01-01"}, {"backtest_end": "2012-06-01"}, {**CUT}])
def test_a_backtest_may_be_a_part_of_its_split(report: dict[str, Any]) -> None:
    assert spec({**CUT, "folds": 3}, {"split": "validation"}, {"split": "backtest", **report})
