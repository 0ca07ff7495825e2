"""A report of a champion is bounded, and no test data are used before the tournament has ended."""

import json

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.client.account_charts import drawdown
from podrace.dashboard.on_demand import reports
from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_COMPLETED,
    TOURNAMENT_STATE_RUNNING,
    Tournament,
)


@pytest.fixture
def tournament() -> Tournament:
    found = Tournament(state=TOURNAMENT_STATE_RUNNING, champion_manifest_digest="0" * 64)
    found.spec.environment.id = "stocks"
    found.spec.evaluation.options.update({"split": "validation"})
    for name in ("validation", "backtest"):
        found.spec.reports[name].options.update({"split": name, "episode_days": 0})
        found.spec.reports[name].episodes = 1
    return found


def test_a_running_tournament_has_reports_of_its_own_evaluation_data_only(tournament: Tournament):
    assert reports.refusal(tournament, "validation") == ""
    assert "has ended" in reports.refusal(tournament, "backtest")
    tournament.state = TOURNAMENT_STATE_COMPLETED
    assert reports.refusal(tournament, "backtest") == ""


def test_of_other_environments_only_a_report_with_the_same_options_has_the_same_data(tournament: Tournament):
    tournament.spec.environment.id = "own:Market"
    assert "has ended" in reports.refusal(tournament, "validation")
    tournament.spec.evaluation.options.update({"episode_days": 0})
    assert reports.refusal(tournament, "validation") == ""


def test_what_cannot_be_evaluated_is_refused(tournament: Tournament):
    assert "no report other" in reports.refusal(tournament, "other")
    tournament.champion_manifest_digest = ""
    assert "no candidate" in reports.refusal(tournament, "validation")


def test_the_choices_state_the_options_of_each_report(tournament: Tournament):
    tournament.spec.reports["../outside"].episodes = 1
    first, second = reports.choices(tournament)
    assert (first["name"], second["name"]) == ("backtest", "validation")
    assert "split = validation" in second["options"]
    assert first["refused"]
    assert not second["refused"]


def backtest(days: int) -> Evaluation:
    found = Evaluation(mean_return=0.1, episodes=1)
    values = [100.0 + (day % 10) for day in range(days)]
    for name in ("account_value", "index_value", "exposure"):
        found.traces[name].values.extend(values)
    found.traces["account_value"].labels.extend(f"day {day}" for day in range(days))
    for prefix in ("", "index_", "equal_weight_"):
        found.metrics[f"{prefix}cumulative_return"] = 0.25
    found.metrics["mean_exposure"], found.metrics["custom"] = 0.5, float("nan")
    return found


def test_a_backtest_has_account_drawdown_and_exposure_and_the_market():
    shown = reports.report(backtest(30))
    charts = {one["title"]: one for one in shown["charts"]}
    assert list(charts) == ["Account value", "Drawdown", "Value of the shares / account value"]
    assert [one["name"] for one in charts["Account value"]["series"]] == ["champion", "index"]
    assert min(charts["Drawdown"]["series"][0]["y"]) == pytest.approx(100 / 109 - 1)
    assert charts["Account value"]["labels"][-1] == "day 29"
    assert shown["comparison"]["columns"] == ["champion", "index", "equal weight"]
    assert shown["comparison"]["rows"][0] == {"name": "cumulative return", "percent": True, "values": [0.25] * 3}
    assert {one["name"]: one["value"] for one in shown["metrics"]} == {"mean exposure": 0.5, "custom": None}
    json.dumps(shown, allow_nan=False)


def test_a_long_account_is_reduced_and_keeps_its_extremes():
    evaluation = backtest(50_000)
    evaluation.traces["account_value"].values[31_415] = 1.0
    (account, *_) = reports.report(evaluation)["charts"]
    assert len(account["x"]) == len(account["series"][0]["y"]) == reports.MOST_DAYS
    assert min(value for value in account["series"][0]["y"] if value is not None) == 1.0
    assert account["labels"] == []


def test_an_evaluation_without_an_account_has_its_metrics():
    shown = reports.report(Evaluation(mean_return=1.0, variance=4.0, episodes=4, metrics={"speed": 2.0}))
    assert (shown["charts"], shown["comparison"]["rows"], shown["standard_error"]) == ([], [], 1.0)
    assert shown["metrics"] == [{"name": "speed", "percent": False, "value": 2.0}]


def test_a_drawdown_is_the_loss_against_the_highest_value_so_far():
    assert drawdown([100.0, 50.0, 200.0, 150.0]) == [0.0, -0.5, 0.0, -0.25]
    assert drawdown([0.0, -1.0]) == [0.0, 0.0]
