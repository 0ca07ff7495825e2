"""No tournament starts from an agent that was trained or selected on the data that it evaluates on."""

from typing import Any

import pytest

from podrace.specification.ancestor import mismatch
from podrace.specification.data_leakage import DEFAULT_DATES
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from simulators.stocks.options import StockOptions

DATES = {"train_end": "2010-01-01", "validation_end": "2011-07-01"}
LATER = {"train_end": "2011-01-01", "validation_end": "2012-07-01"}
FOLDS = {**DATES, "folds": 3}


def spec(options: dict[str, Any], id: str = "stocks") -> TournamentSpec:
    made = TournamentSpec()
    made.environment.id = id
    made.environment.options.update(options)
    made.evolution.ancestor_agent_id = "market-abc123-a1"
    return made


def refusal(here: dict[str, Any], there: dict[str, Any], id: str = "stocks") -> str:
    return mismatch(spec(here, id), spec(there, id))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (DATES, DATES),
        ({**LATER, "path": "newer.npz"}, DATES),
        (LATER, {}),
        (FOLDS, {**FOLDS, "path": "older.npz", "backtest_end": "2012-01-01", "embargo_bars": 0}),
        ({**LATER, "train_end": "2011-07-01"}, FOLDS),
        ({**LATER, "folds": 3, "train_start": "2011-07-01", "train_end": "2012-01-01"}, FOLDS),
        ({"path": "synthetic:minute?days=60"}, {"path": "synthetic:minute?days=90"}),
        ({"layout": "minute"}, {**LATER, "layout": "minute"}),
        ({"train_end": "soon"}, DATES),
    ],
)
def test_an_agent_whose_data_ends_before_the_new_validation_is_an_ancestor(
    here: dict[str, Any], there: dict[str, Any]
) -> None:
    assert refusal(here, there) == ""


@pytest.mark.parametrize("there", [LATER, {**DATES, "split": "validation"}, FOLDS])
def test_an_agent_that_was_trained_on_the_validation_split_is_refused(there: dict[str, Any]) -> None:
    assert "but validation begins on 2010-01-01: set environment.options.train_end to 2011-" in refusal(DATES, there)


def test_an_agent_that_was_selected_on_the_backtest_is_refused() -> None:
    refused = refusal({}, {**DATES, "validation_end": "2012-07-01"})
    assert "was selected on data until 2012-07-01, but the backtest begins on 2011-07-01: set" in refused


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (LATER, "train_end"),
        ({"validation_end": "2012-07-01"}, "validation_end"),
        ({"train_start": "2006-01-01"}, "train_start"),
        ({"folds": 4}, "folds"),
        ({"embargo_bars": 5}, "embargo_bars"),
        ({"turbulence_threshold": 100.0}, "turbulence_threshold"),
    ],
)
def test_folds_that_lie_elsewhere_than_those_of_the_ancestor_are_refused(changed: dict[str, Any], name: str) -> None:
    refused = refusal({**FOLDS, **changed}, FOLDS)
    assert f"because environment.options.{name} = " in refused
    assert "start without an ancestor" in refused
    assert "\n" not in refused


def test_folds_over_years_that_an_ancestor_without_folds_was_trained_on_are_refused() -> None:
    assert "because environment.options.folds = 3.0 was not set" in refusal(FOLDS, DATES)


def test_the_rules_apply_to_stocks_behind_a_service_and_to_no_other_simulator() -> None:
    service = "grpc://market:50070"
    assert refusal({**DATES, "id": "stocks"}, {**LATER, "id": "stocks"}, service)
    assert not refusal({**DATES, "id": "desk"}, {**LATER, "id": "desk"}, service)
    assert not refusal(DATES, LATER, "python:desk:make")


def test_the_default_dates_are_those_of_the_simulator() -> None:
    assert {name: getattr(StockOptions, name) for name in DEFAULT_DATES} == DEFAULT_DATES
