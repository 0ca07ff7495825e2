"""Every combination of an environment and algorithms gives a specification that can be trained."""

import tomllib
from itertools import product

import pytest

from podrace.cli.init.environments import ENVIRONMENTS, action_kind, known_environment
from podrace.cli.init.template import Choices, specification_text, suitable_algorithms, tournament_name
from podrace.errors import InvalidArgument
from podrace.specification import resolve
from podrace.specification.catalog import ALGORITHMS, SIMULATORS
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MEMBERS = {
    "<Gymnasium id>": "CartPole-v1",
    "envpool:<task>": "envpool:Ant-v5",
    "atari:<game>": "atari:pong",
    "isaacgym:<task>": "isaacgym:Ant",
    "isaaclab:<id>": "isaaclab:Isaac-Ant-Direct-v0",
    "grpc://<host>:<port>": "grpc://127.0.0.1:50070",
    "pettingzoo:<module>": "pettingzoo:mpe2.simple_spread_v3",
    "python:<module>:<factory>": "python:corridor:make",
}
"""A member of each family of simulators."""
ENVIRONMENT_IDS = [MEMBERS.get(id, id) for id in SIMULATORS] + [key for key in ENVIRONMENTS if key[-1] not in ":/"]
ENDS = [("10m", None), ("", 100.0), ("90s", -5.5)]


def choices(environment: str, *algorithms: str, wall_clock: str = "5m", target: float | None = None) -> Choices:
    options = {"id": "pendulum"} if environment.startswith("grpc://") else {}
    return Choices(environment, algorithms or ("ppo",), wall_clock, target, pods=2, options=options)


def resolved(chosen: Choices) -> TournamentSpec:
    text = specification_text(chosen, "a.toml")
    return resolve.resolve(resolve.parse(tomllib.loads(text), source="test"))


@pytest.mark.long
@pytest.mark.parametrize("environment", dict.fromkeys(ENVIRONMENT_IDS))
def test_every_combination_is_accepted_by_the_resolver(environment: str) -> None:
    for algorithm, (wall_clock, target) in product(suitable_algorithms(environment), ENDS):
        spec = resolved(choices(environment, algorithm, wall_clock=wall_clock, target=target))
        assert spec.environment.id == environment
        assert list(spec.algorithms) == [algorithm]
        assert spec.objective.HasField("target_return") == (target is not None)
        assert spec.objective.HasField("wall_clock_duration") == bool(wall_clock)


def test_every_family_of_the_catalog_has_a_member_here() -> None:
    assert set(MEMBERS) == {id for id in SIMULATORS if "<" in id}


def test_all_suitable_algorithms_compete_in_one_tournament() -> None:
    spec = resolved(choices("cartpole", *suitable_algorithms("cartpole")))
    fitting = {name for name, entry in ALGORITHMS.items() if "discrete" in entry.action_kinds and not entry.teams}
    assert set(spec.algorithms) == fitting
    fitting = [name for name, entry in ALGORITHMS.items() if entry.teams and "discrete" in entry.action_kinds]
    assert suitable_algorithms("spread") == fitting


def test_every_table_and_key_of_the_text_has_a_comment_above_its_group() -> None:
    groups = specification_text(choices("stocks"), "a.toml").split("\n\n")
    first = [group.splitlines()[0] for group in groups]
    follows = {"[pod]", "[algorithms.ppo.hyperparameters]", "[reports.backtest.options]"}
    assert {line for line in first if not line.startswith("#")} <= follows


def test_an_algorithm_that_does_not_suit_the_actions_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"dqn: mujoco:Ant-v5 has continuous actions; choose one of .*ppo"):
        specification_text(choices("mujoco:Ant-v5", "dqn"), "a.toml")
    with pytest.raises(InvalidArgument, match="did you mean 'ppo'"):
        specification_text(choices("cartpole", "ppoo"), "a.toml")


@pytest.mark.parametrize("id", ["", "atari:<game>"])
def test_an_id_must_name_an_environment(id: str) -> None:
    with pytest.raises(InvalidArgument, match="podrace simulators"):
        specification_text(choices(id), "a.toml")


def test_a_tournament_needs_an_end() -> None:
    with pytest.raises(InvalidArgument, match="would never end"):
        specification_text(choices("cartpole", wall_clock=""), "a.toml")


def test_a_duration_that_is_none_is_refused_by_its_key() -> None:
    with pytest.raises(InvalidArgument, match="wall_clock_duration"):
        specification_text(choices("cartpole", wall_clock="soon"), "a.toml")


def test_a_service_needs_the_name_of_its_simulator() -> None:
    with pytest.raises(InvalidArgument, match="--option id="):
        specification_text(Choices("grpc://h:1", ("ppo",), "5m", None, 2), "a.toml")


def test_pictures_get_convolutional_layers_and_stocks_are_scored_on_other_days() -> None:
    assert resolved(choices("atari:pong")).algorithms["ppo"].hyperparameters["torso"].value.string_value == "nature"
    assert resolved(choices("stocks")).evaluation.options["split"] == "validation"


@pytest.mark.parametrize(
    ("id", "kind"),
    [("gym:CartPole-v1", "discrete"), ("atari:pong", "discrete"), ("Pendulum-v1", "continuous"), ("Ant-v5", "")],
)
def test_kinds_of_actions_are_known_for_simulators_of_the_catalog(id: str, kind: str) -> None:
    assert action_kind(id) == kind


def test_a_name_is_derived_from_the_environment() -> None:
    assert tournament_name(choices("python:my_game:make")) == "python-my-game-make"
    assert tournament_name(Choices("cartpole", ("ppo",), "5m", None, 2, name="first")) == "first"
    assert known_environment("mujoco:Ant-v5").needs == "mujoco"
