"""The commands of a user: train, show results, evaluate. Every JSON output has the documented keys."""

import json

import pytest

pytestmark = pytest.mark.e2e

TRAIN_KEYS = {
    "tournament_id",
    "state",
    "reason",
    "objective",
    "best_score",
    "best_score_standard_error",
    "best_agent_id",
    "total_environment_steps",
    "wall_seconds",
    "champion_checkpoint",
    "reported_episodes",
    "selection_score",
    "selection_score_standard_error",
    "champion_reason",
    "folder",
}
STANDINGS_KEYS = {
    "rank",
    "agent_id",
    "algorithm",
    "score",
    "standard_error",
    "episodes",
    "environment_steps",
    "parent_agent_ids",
}


def test_one_command_trains_and_the_others_show_its_results(home):
    spec = home.spec("environment_steps = 25000", pool="maximum_pods = 2")
    trained = home.json("train", str(spec))
    assert set(trained) >= TRAIN_KEYS
    assert trained["state"] == "COMPLETED"
    assert trained["total_environment_steps"] >= 25_000
    tournament = trained["tournament_id"]
    folder = home.folders.tournament(tournament)
    assert (folder / "learning_curves.png").stat().st_size > 10_000
    assert json.loads((folder / "report.json").read_text())
    assert not home.left_behind()

    standings = home.json("standings", tournament)
    assert standings
    assert all(set(candidate) >= STANDINGS_KEYS for candidate in standings)
    assert [candidate["rank"] for candidate in standings] == list(range(1, len(standings) + 1))
    assert trained["reported_episodes"] == 8
    assert "episodes that were not used for selection" in trained["champion_reason"]
    assert {row["tournament_id"] for row in home.json("ls")} == {tournament}
    assert home.json("show", "latest")["tournament_id"] == tournament
    assert home.json("lineage", tournament)
    evaluated = home.json("evaluate", tournament, "--episodes", "5")
    assert evaluated["episodes"] == 5
    assert not home.left_behind()

    code, out, err = home.run("lineage", tournament, "--replay")
    assert code == 0, out + err


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("CartPoll-v1", "CartPole-v1"),
        ("python:environments:not_finite", "not finite"),
        ("python:nowhere:nothing", "nowhere"),
    ],
)
def test_an_environment_that_does_not_work_fails_the_tournament_with_one_line(home, environment, words):
    spec = home.spec("environment_steps = 25000")
    code, _, err = home.run("train", str(spec), "--set", f'environment.id="{environment}"')
    assert code != 0
    last = err.strip().splitlines()[-1]
    assert words in err
    assert last.startswith("error: ")
    assert "Traceback" not in err
    assert not home.left_behind()


def test_a_home_that_is_a_file_is_refused_in_one_line(home):
    home.path.write_text("not a folder")
    code, _, err = home.run("train", str(home.spec("environment_steps = 1")))
    assert code != 0
    (line,) = err.strip().splitlines()
    assert str(home.path) in line


def test_a_corrupted_champion_is_reported_in_one_line(home):
    trained = home.json("train", str(home.spec("environment_steps = 10000")))
    manifest = trained["champion_checkpoint"]
    (path,) = home.folders.store.glob(f"**/{manifest}*")
    path.write_bytes(b"{}")
    code, _, err = home.run("evaluate", trained["tournament_id"], "--episodes", "2")
    assert code != 0
    assert manifest[:12] in err
    assert "Traceback" not in err
    assert not home.left_behind()
