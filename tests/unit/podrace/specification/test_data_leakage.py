"""Selection never sees the data that is to judge."""

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


def test_the_backtest_is_for_reports_alone() -> None:
    given = {**CUT, "split": "train"}
    assert spec(given, {"split": "validation"}, {"split": "backtest"}).reports["end"].options["split"] == "backtest"
    with pytest.raises(
        InvalidArgument, match=r"evaluation\.options\.split = 'backtest': .*name it in \[reports\] alone"
    ):
        spec(given, {"split": "backtest"}, {})
    with pytest.raises(InvalidArgument, match=r"environment\.options\.split = 'backtest': agents would be trained"):
        spec({**CUT, "split": "backtest"}, {"split": "validation"}, {})


def test_that_holds_for_a_users_own_environment() -> None:
    with pytest.raises(InvalidArgument, match="the data that is to judge the champion"):
        spec({}, {"split": "backtest"}, {}, id="python:desk:make")


@pytest.mark.parametrize(("name", "value"), [("validation_end", "2013-03-01"), ("path", "all.npz")])
def test_validation_cannot_be_moved_into_the_backtest(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"evaluation\.options\.{name} = '.*set it in \[environment\.options\]"):
        spec(CUT, {"split": "validation", name: value}, {})


def test_naming_the_same_cut_again_changes_nothing() -> None:
    assert spec(CUT, {"split": "validation", **CUT, "episode_days": 126}, {"split": "backtest"})


def test_other_simulators_may_have_options_of_the_same_names() -> None:
    assert spec({}, {"path": "elsewhere"}, {}, id="python:desk:make")


def test_the_example_of_trading_is_fair() -> None:
    from pathlib import Path

    path = Path(__file__).parents[4] / "examples" / "stocks.toml"
    assert resolve(parse(read_toml(path), source=path.name)).reports["backtest"].options["split"] == "backtest"
