"""Tests the settings by which pods work for each other."""

from typing import Any

import pytest

from podrace.errors import InvalidArgument
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def resolved(**sections: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "Pendulum-v1"},
        "algorithms": {"sac": {}},
        "objective": {"environment_steps": 100_000},
        **sections,
    }
    return resolve(parse(values, source="test"))


def test_shared_experience_has_defaults_and_is_off_by_default() -> None:
    assert not resolved().HasField("experience")
    shared = resolved(experience={"shared": True})
    assert (shared.experience.own_share, shared.experience.capacity_steps) == (0.5, 100_000)
    assert resolve(shared) == shared
    own = resolved(experience={"shared": True, "own_share": 0.8, "capacity_steps": 5_000})
    assert (own.experience.own_share, own.experience.capacity_steps) == (0.8, 5_000)
    unused = resolved(experience={"shared": False}, synchronous=True, pool={"maximum_pods": 2})
    assert not unused.experience.HasField("own_share")


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"algorithms": {"ppo": {}}}, "no algorithm of the specification learns from a replay memory"),
        ({"synchronous": True, "pool": {"maximum_pods": 2}}, "set it to false when synchronous = true"),
        ({"assignment": {"replay_bytes": 0}}, "set assignment.replay_bytes above 0"),
        ({"assignment": {"tournament_replay_bytes": 0}}, "set assignment.tournament_replay_bytes above 0"),
        ({"pod": {"learners": 2, "cores": 2}}, "set pod.learners = 1"),
    ],
)
def test_sharing_that_cannot_work_is_refused_with_what_to_set(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"experience.shared = true: .*{problem}"):
        resolved(experience={"shared": True}, **sections)


@pytest.mark.parametrize(
    ("key", "value"), [("own_share", 0.0), ("own_share", 1.1), ("capacity_steps", 10), ("capacity_steps", 10**10)]
)
def test_values_out_of_bounds_are_refused(key: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"experience.{key}"):
        resolved(experience={"shared": True, key: value})


def test_a_mix_with_an_algorithm_that_replays_nothing_is_allowed() -> None:
    assert resolved(algorithms={"sac": {}, "ppo": {}}, experience={"shared": True}).experience.shared


# --- opponents in games ------------------------------------------------------------------------------------------


def game(**sections: Any) -> TournamentSpec:
    return resolved(**{"environment": {"id": "game:connect-four"}, "algorithms": {"ppo": {}}, **sections})


def test_opponents_have_defaults_in_games_and_are_absent_elsewhere() -> None:
    assert not resolved().HasField("opponents")
    opponents = game().opponents
    assert (opponents.training, opponents.rated, opponents.count, opponents.every_rollouts) == ("built-in", False, 4, 8)
    assert (opponents.matches, opponents.games) == (6, 32)
    rated = game(opponents={"rated": True, "training": "past", "games": 10})
    assert (rated.opponents.games, rated.evaluation.racing) == (10, False)
    assert resolve(rated) == rated


@pytest.mark.parametrize(
    ("opponents", "sections", "problem"),
    [
        ({"training": "others"}, {}, "expected one of built-in, self, past, board"),
        ({"training": "self"}, {"environment": {"id": "cartpole"}}, "'cartpole' is not a game of two players"),
        ({"rated": True}, {"environment": {"id": "cartpole"}}, "'cartpole' is not a game of two players"),
        ({"training": "past"}, {"synchronous": True, "pool": {"maximum_pods": 2}}, "leave it out when synchronous"),
        ({"training": "board"}, {"pod": {"learners": 2, "cores": 2}}, "set pod.learners = 1"),
        ({"training": "self"}, {"pod": {"worker": "grpc://localhost:1"}}, "leave out pod.worker"),
        ({"training": "self", "built_in": 4}, {}, "expected less than opponents.count = 4"),
        ({"rated": True}, {"evaluation": {"racing": True}}, "leave out evaluation.racing"),
        ({"rated": True}, {"evaluation": {"verify": 8, "episodes": 16}}, "set evaluation.verify = 0"),
        ({"rated": True}, {"evaluation": {"evaluator": "python:a:b"}}, "leave out evaluation.evaluator"),
        ({"rated": True}, {"champion": {"ensemble": 2}}, "set champion.ensemble = 0"),
        ({"rated": True}, {"objective": {"target_return": 0.5}}, "replace objective.target_return"),
    ],
)
def test_opponents_that_cannot_play_are_refused_with_what_to_set(
    opponents: dict[str, Any], sections: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"opponents..*{problem}"):
        game(opponents=opponents, **sections)


@pytest.mark.parametrize(("key", "value"), [("count", 17), ("matches", 0), ("games", 1), ("every_rollouts", 0)])
def test_numbers_of_opponents_out_of_bounds_are_refused(key: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"opponents.{key}"):
        game(opponents={key: value})
