"""A small tournament of a game: agents train against the board, are rated by games, and a round robin is played."""

import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SPECIFICATION = """
name = "tictactoe"

[environment]
id = "game:tic-tac-toe"
count = 16

[algorithms.ppo]
ratio = 1.0

[algorithms.ppo.hyperparameters]
hidden_sizes = [16, 16]
horizon = 16
minibatch_size = 64

[opponents]
training = "board"
built_in = 1
every_rollouts = 2
rated = true
matches = 2
games = 8

[objective]
environment_steps = 16_000

[pool]
maximum_pods = 1

[pod]
layout = "{layout}"

[assignment]
environment_steps = 4_000

[evaluation]
episodes = 16
every_environment_steps = 2_000

[champion]
reevaluate_top = 3
reevaluate_episodes = 8

[evolution]
strategy = "tournament"
initial_agents = 2
"""


@pytest.mark.parametrize("layout", ["fused", "separate"])
def test_candidates_of_a_game_are_rated_and_the_champion_wins_a_round_robin(home, tmp_path: Path, layout: str) -> None:
    path = tmp_path / "game.toml"
    path.write_text(SPECIFICATION.replace("{layout}", layout))
    assert tomllib.loads(path.read_text())
    trained = home.json("train", str(path))
    assert trained["state"] == "COMPLETED"
    board = home.json("standings", "latest")
    assert board
    assert all("return" in one["episode_metrics"] for one in board)
    _, events, _ = home.run("events", "latest")
    assert "won the round robin of" in " ".join(events.split())
    assert not home.left_behind()
