import importlib
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def races() -> Any:
    return importlib.import_module("races")


@pytest.fixture(scope="module")
def tournament() -> Any:
    return importlib.import_module("tournament")


def run_of(contender: str, value: float, *, good: bool = True) -> dict[str, Any]:
    reports = {"fresh": {"mean_return": value}}
    return {"case": "docking", "contender": contender, "seed": 1, "good": good, "reports": reports, "reason": "why"}


def test_a_line_truncated_by_a_crash_affects_no_other(races: Any, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    races.append(path, {"name": "one"})
    with path.open("a") as file:
        file.write('\n{"name": "to')
    races.append(path, {"name": "three"})
    assert [run["name"] for run in races.read(path)] == ["one", "three"]
    assert races.read(tmp_path / "none.jsonl") == []


def test_an_interval_is_above_another_only_if_they_are_disjoint(races: Any) -> None:
    low, high = races.summarize([1.0, 2.0, 3.0]), races.summarize([3.0, 4.0, 5.0])
    assert not races.line("b", "c", "m", "1", high, "low", low)["interval_above"]
    assert races.line("b", "c", "m", "1", races.summarize([4.0, 5.0]), "low", low)["interval_above"]


def test_a_summary_has_median_and_mean_and_is_none_without_values(races: Any) -> None:
    found = races.summarize([5.0, 1.0, 100.0])
    assert (found.median, found.low, found.high, found.seeds) == (5.0, 1.0, 100.0, 3)
    assert found.mean_low < found.mean == 106 / 3 < found.mean_high
    assert races.summarize([]) is None


def test_every_contender_of_a_task_has_the_same_steps_and_as_many_scores_to_choose_from(tournament: Any) -> None:
    for task in tournament.TASKS:
        specs = {name: tournament.Race(task, name, 1, tournament.specification(task, name, 48)).cell().spec
                 for name in tournament.CONTENDERS}  # fmt: skip
        totals = {spec.objective.environment_steps for spec in specs.values()}
        scores = {
            spec.objective.environment_steps // spec.evaluation.every_environment_steps for spec in specs.values()
        }
        rounds = {
            name: spec.objective.environment_steps % (spec.assignment.environment_steps * spec.pool.maximum_pods)
            for name, spec in specs.items()
        }
        assert len(totals) == 1
        assert scores == {48}
        assert set(rounds.values()) == {0}, "a partial last round would exceed the budget"
        assert specs["vanilla"].assignment.environment_steps == totals.pop()
        assert specs["vanilla"].pool.maximum_pods == 1


def test_the_first_agent_of_a_deceptive_task_has_the_algorithms_defaults(tournament: Any) -> None:
    from podrace.specification.catalog import ALGORITHMS

    spec = tournament.Race("docking", "vanilla", 1, tournament.specification("docking", "vanilla", 48)).cell().spec
    given = spec.algorithms["ppo"].hyperparameters
    for name in tournament.SEARCHED:
        assert given[name].value.number_value == ALGORITHMS["ppo"].hyperparameters[name].default
        assert given[name].HasField("low")


def test_a_failed_run_is_reported_and_not_counted(tournament: Any) -> None:
    runs = [run_of("truncation", 5.0), run_of("truncation", 9.0, good=False), run_of("random-search", 1.0)]
    found = list(tournament.findings(runs, ["docking"], ["truncation", "random-search"]))
    alone = [line for line in found if line["case"] == "docking/truncation" and "against" not in line]
    assert [line["value"] for line in alone] == [5.0]
    failed = [line for line in found if line["metric"] == "failed"]
    assert [(line["case"], line["reason"]) for line in failed] == [("docking/truncation/seed-1", "why")]
    best = next(line for line in found if "best" in str(line["case"]))
    assert best["case"] == "docking/best: truncation"
    assert best["interval_above"] is True
    assert json.dumps(found)


def test_a_changed_race_has_another_name(races: Any, tournament: Any) -> None:
    values = tournament.specification("docking", "truncation", 48)
    names = [races.Race("docking", "truncation", seed, values).cell().spec.name for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    other = {**values, "champion": {"reevaluate_top": 2}}
    assert races.Race("docking", "truncation", 1, other).cell().spec.name != names[0]
