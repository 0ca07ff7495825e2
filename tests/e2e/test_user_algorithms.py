"""A tournament in which a user-defined algorithm races a built-in one and one that always fails."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).parents[2]
SPEC = """
name = "own"
seed = 3
[environment]
id = "cartpole"
count = 8
[algorithms.ppo.hyperparameters]
hidden_sizes = [16]
horizon = 64
[algorithms."python:examples.algorithms.reinforce:Reinforce".hyperparameters]
hidden_sizes = [16]
horizon = 64
[algorithms."python:faulty_algorithms:Raising"]
[objective]
environment_steps = 60_000
[assignment]
environment_steps = 4096
[evaluation]
episodes = 8
every_environment_steps = 2048
share = 1.0
[pool]
maximum_pods = 1
[champion]
reevaluate_episodes = 8
"""
REINFORCE, RAISING = "python:examples.algorithms.reinforce:Reinforce", "python:faulty_algorithms:Raising"


def test_a_user_defined_algorithm_takes_part_and_one_that_fails_leaves(home):
    path = home.path.parent / "own.toml"
    path.write_text(SPEC)
    trained = home.json("train", str(path))
    assert trained["state"] == "COMPLETED"
    assert not home.left_behind()
    events = home.json("events", trained["tournament_id"])
    failures = [event["message"] for event in events if event["kind"] == "agent_failed"]
    assert failures
    assert all("Raising.loss (faulty_algorithms.py:" in message for message in failures)
    shown = home.json("show", trained["tournament_id"])
    agents = {one["algorithm"]: one for one in shown["algorithms"]}
    assert agents[REINFORCE]["submissions"]
    assert not agents.get(RAISING, {}).get("submissions")
    code, out, _ = home.run("lineage", trained["tournament_id"], "--replay")
    assert (code, ", 0 differences" in out) == (0, True), out
