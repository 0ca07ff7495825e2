"""The same specification and seed produce the same tournament, bit by bit, regardless of the speed of pods."""

import json
import sqlite3
import sys
from contextlib import closing

import pytest
from homes import Home

pytestmark = [pytest.mark.e2e, pytest.mark.cold]
"""Cold: processes that are forked from one would have the same order of hashes in both runs. So only the first run is
forked."""


@pytest.fixture
def first_home(home, warm_python):
    home.python = warm_python
    return home


def timeless_results(home: Home) -> dict[str, object]:
    """Returns the results of a tournament that must not depend on timing, by agent."""
    trained = home.json(
        "train",
        str(home.spec("environment_steps = 30000", pool="maximum_pods = 2")),
        "--set",
        "synchronous=true",
    )
    assert trained["state"] == "COMPLETED"
    tournament = trained["tournament_id"]
    manifests = [
        json.loads(path.read_text())
        for path in home.folders.store.glob("tournaments/*/objects/*/*")
        if path.read_bytes()[:1] == b"{"
    ]
    curves: dict[str, list[tuple[object, ...]]] = {}
    for manifest in manifests:
        agent = manifest["agent_id"].removeprefix(tournament)
        evaluation = manifest["evaluation"]
        curves.setdefault(agent, []).append(
            (
                int(manifest["environment_steps"]),
                evaluation["mean_return"],
                evaluation["seed"],
                evaluation["policy_digest"],
                tuple(part["digest"] for part in manifest["parts"]),
                json.dumps(manifest["hyperparameters"], sort_keys=True),
            )
        )
    agents = [
        (
            row["agent_id"].removeprefix(tournament),
            [parent.removeprefix(tournament) for parent in row["parent_agent_ids"]],
        )
        for row in home.json("lineage", tournament)
    ]
    return {"curves": {agent: sorted(points) for agent, points in curves.items()}, "agents": sorted(agents)}


def test_a_synchronous_tournament_is_reproducible(first_home):
    first = timeless_results(first_home)
    second = timeless_results(Home(first_home.path.parent / "again"))
    assert len(first["curves"]) >= 6
    assert any(parents for _, parents in first["agents"])
    assert first == second


@pytest.mark.timeout(240)
def test_an_agent_is_trained_again_from_its_manifest_bit_for_bit(first_home):
    home = first_home
    spec = home.spec("environment_steps = 10000", pool="maximum_pods = 1")
    trained = home.json(
        "train", str(spec), "--set", "evolution.initial_agents=1", "--set", "evolution.fresh_probability=0"
    )
    child = f"{trained['tournament_id']}-a1"
    home.python = sys.executable
    code, out, err = home.run("lineage", child, "--retrain", "--json")
    assert code == 0, out + err
    again = json.loads(out)
    assert again["agent_id"] == child
    assert {(file["environment_steps"], file["part"]) for file in again["files"]} == {
        (steps, part) for steps in (2048, 4096) for part in ("policy", "learner", "test_vectors")
    }
    assert all(file["recorded"] == file["again"] for file in again["files"])


def test_a_replay_finds_no_difference_until_a_recorded_decision_is_altered(first_home):
    home = first_home
    trained = home.json("train", str(home.spec("environment_steps = 30000", pool="maximum_pods = 2")))
    home.python = sys.executable
    replayed = home.json("lineage", trained["tournament_id"], "--replay")
    assert replayed["differences"] == []
    assert replayed["agents"] >= 6
    assert replayed["submissions"] >= 12
    with closing(sqlite3.connect(home.folders.leaderboard_database, isolation_level=None)) as database:
        # Marks an accepted candidate as refused, which no longer follows from the recorded history.
        changed = database.execute("update submissions set verdict = 2 where sequence = 1 and verdict != 2")
        assert changed.rowcount == 1
    code, out, err = home.run("lineage", trained["tournament_id"], "--replay")
    assert code == 1
    assert "1 difference" in out, err
