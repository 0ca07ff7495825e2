import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def races() -> Any:
    return importlib.import_module("harness.races")


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


def test_a_changed_race_has_another_name(races: Any) -> None:
    values = {
        "environment": {"id": "cartpole"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1000},
        "pool": {"maximum_pods": 1},
    }
    names = [races.Race("cartpole", "tournament", seed, values).cell().spec.name for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    other = {**values, "champion": {"reevaluate_top": 2}}
    assert races.Race("cartpole", "tournament", 1, other).cell().spec.name != names[0]
