"""A tournament with Python functions as generator and updater plugins."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
EXAMPLE = Path(__file__).parents[2] / "examples/custom/evolution.toml"
SMALL = {
    "objective.environment_steps": 20_000,
    "assignment.environment_steps": 4000,
    "evaluation.every_environment_steps": 4000,
    "evaluation.episodes": 8,
}


def test_a_tournament_runs_with_a_generator_and_an_updater_plugin(home):
    overrides = [argument for key, value in SMALL.items() for argument in ("--set", f"{key}={value}")]
    trained = home.json("train", str(EXAMPLE), *overrides)
    assert trained["state"] == "COMPLETED"
    assert not home.left_behind()
    log = (home.folders.logs / "leaderboard.log").read_text()
    assert "python:examples.custom.generator:propose: rank 1 may have another child; child of a" in log
    assert "python:examples.custom.updater:judge: at least " in log
    code, out, _ = home.run("lineage", trained["tournament_id"], "--replay")
    assert (code, ", 0 differences" in out) == (0, True), out
