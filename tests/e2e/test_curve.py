"""Curves of a tournament with snapshots: CSV and plot, a second run, and a lost snapshot."""

import csv

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EPISODES = ("--episodes", "4")


def test_curves_of_snapshots_are_written_as_csv_and_plot(home):
    spec = home.spec("environment_steps = 120000", pool="maximum_pods = 2")
    trained = home.json("train", str(spec), "--set", "evaluation.snapshot_period=1s")
    tournament = trained["tournament_id"]
    numbers, picture = home.path.parent / "curve.csv", home.path.parent / "curve.png"

    files = ("--csv", str(numbers), "--plot", str(picture))
    drawn = home.json("curve", "latest", "--of", "all", *EPISODES, *files)
    assert drawn["failures"] == []
    with numbers.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == len(drawn["points"])
    assert {row["tournament_id"] for row in rows} == {tournament}
    assert {row["episodes"] for row in rows} == {"4"}
    champion = [row for row in rows if row["agent_id"] == "champion"]
    agents = [row for row in rows if row["agent_id"] != "champion"]
    assert len(agents) > 1, "the curve without a lost snapshot would be empty"
    assert all(row["agent_id"].startswith(tournament) for row in agents)
    assert all(1.0 <= float(row["seconds"]) <= trained["wall_seconds"] for row in rows)
    steps = [int(row["environment_steps"]) for row in champion]
    assert steps == sorted(steps)
    assert steps[-1] == trained["total_environment_steps"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not home.left_behind()

    code, out, err = home.run("curve", tournament, *EPISODES, "--json")
    assert code == 0, err
    assert "evaluating" not in err, "all snapshots are already evaluated"
    assert not home.left_behind()

    lost = next(point for point in drawn["points"] if point["agent_id"] != "champion")
    (path,) = home.folders.store.glob(f"**/{lost['manifest_digest']}")
    path.unlink()
    code, out, err = home.run("curve", tournament, "--of", "agents", *EPISODES, "--seed", "1")
    assert code == 1
    assert f"snapshot {lost['manifest_digest'][:12]} is omitted" in err
    assert "Traceback" not in err
    assert out.count("ppo") == len(agents) - 1
    assert not home.left_behind()
