"""A grid on a real mesh: parallel cells, a killed command, and the same command again."""

import json

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e


def test_a_grid_resumes_after_its_command_was_killed(home):
    spec = home.spec("environment_steps = 8000", pool="maximum_pods = 1")
    arguments = "grid", str(spec), "--axes", "seed=0..1", "--parallel", "2"
    killed = home.start(*arguments)
    wait_for(home.roles, what="pods")
    killed.kill()
    killed.communicate()

    grid = home.json(*arguments)
    assert grid["state"] == "COMPLETED"
    assert [cell["state"] for cell in grid["cells"]] == ["COMPLETED"] * 2
    assert all(cell["environment_steps"] >= 8_000 for cell in grid["cells"])
    assert all(row["interval_low"] <= row["mean_score"] <= row["interval_high"] for row in grid["combinations"])
    (folder,) = (home.path / "grids").iterdir()
    assert (folder / "grid.png").stat().st_size > 10_000
    assert json.loads((folder / "results.json").read_text()) == grid
    # The tournaments of the killed command were resumed: there is one tournament per cell.
    assert {row["tournament_id"] for row in home.json("ls")} == {cell["tournament_id"] for cell in grid["cells"]}
    assert not home.left_behind()
