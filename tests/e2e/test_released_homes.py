"""Homes of released versions on an embedded mesh: a stopped tournament is resumed, old policies are evaluated again."""

import math
from collections.abc import Iterator

import pytest
from homes import Home
from released import HOMES, ReleasedHome, name

pytestmark = pytest.mark.e2e
KINDS = ("agent_assigned", "agent_failed")


@pytest.fixture(params=HOMES, ids=name)
def released(request: pytest.FixtureRequest, home: Home) -> Iterator[ReleasedHome]:
    """A copy of the archived home, where the `home` fixture would start an empty one."""
    unpacked = ReleasedHome(request.param, home.path.parent)
    assert unpacked.path == home.path
    yield unpacked
    assert not home.left_behind()


def published_steps(home: Home) -> dict[str, int]:
    """Environment steps behind the last checkpoint of each agent."""
    listed = home.json("store", "ls", f"folder://{home.folders.store}", with_home=False)
    return {agent["agent_id"]: agent["environment_steps"] for agent in listed}


def test_a_tournament_that_a_release_stopped_is_resumed_and_its_agents_continue(
    home: Home, released: ReleasedHome
) -> None:
    before = released.tournament("stopped")
    tournament_id = before["tournament_id"]
    (recorded,) = (answer for arguments, answer in released.answers("events") if arguments[1] == tournament_id)
    drained = {event["agent_id"] for event in recorded if event["kind"] == "agent_drained"}
    assert drained

    steps = published_steps(home)
    resumed = home.json("train", "--resume", tournament_id)
    assert resumed["state"] == "COMPLETED"
    assert resumed["total_environment_steps"] > before["total_environment_steps"]
    assert resumed["best_score"] >= before["best_score"]

    events = home.json("events", tournament_id)
    assert events[: len(recorded)] == recorded
    later = {kind: {event["agent_id"] for event in events[len(recorded) :] if event["kind"] == kind} for kind in KINDS}
    assert drained <= later["agent_assigned"]
    assert not later["agent_failed"]
    assert all(total > steps[agent] for agent, total in published_steps(home).items() if agent in drained)


def test_the_policies_of_a_release_earn_on_the_same_seeds_what_they_earned_then(
    home: Home, released: ReleasedHome
) -> None:
    ((arguments, answer),) = released.answers("curve")
    curve = home.json(*arguments)
    assert curve["failures"] == []
    assert len(curve["points"]) == len(answer["points"])
    for then, now in zip(answer["points"], curve["points"], strict=True):
        assert now["manifest_digest"] == then["manifest_digest"]
        # Other processors round otherwise: a decision between two equal actions may change, a policy does not.
        assert math.isclose(now["mean"], then["mean"], rel_tol=0.1, abs_tol=then["standard_deviation"])


def test_an_agent_of_a_release_can_be_the_ancestor_of_a_new_tournament(home: Home, released: ReleasedHome) -> None:
    raced = released.tournament("raced")
    arguments = ("--ancestor", raced["tournament_id"], "--set", "objective.environment_steps=20000")
    trained = home.json("train", str(released.specs / "stopped.toml"), "--set", 'name="next"', *arguments)
    assert trained["state"] == "COMPLETED"
    parents = {
        parent for agent in home.json("lineage", trained["tournament_id"]) for parent in agent["parent_agent_ids"]
    }
    assert raced["best_agent_id"] in parents
