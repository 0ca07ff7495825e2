"""Searched keys of the environment become structural hyperparameters, and pods take them out again."""

from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf import json_format

from podrace.config import read_toml
from podrace.errors import InvalidArgument
from podrace.specification.environment_search import (
    algorithm_values,
    evaluation_environment,
    training_environment,
)
from podrace.specification.files import to_toml, to_values
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1 import tournament_pb2 as pb

OPTIONS: Mapping[str, Any] = {
    "frame_skip": 2,
    "market": {"fee": 0.001},
    "wrappers": [{"name": "frame_stack", "count": 4}, {"name": "time_limit", "steps": 100}],
}
SEARCH: Mapping[str, Any] = {
    "count": {"choices": [8, 64]},
    "options.frame_skip": {"choices": [1, 2]},
    "options.market.fee": {"low": 0.0001, "high": 0.01, "scale": "log"},
    "options.wrappers.frame_stack.count": {"choices": [2, 4]},
    "options.wrappers.1.steps": {"choices": [50, 100]},
}
AGENT: Mapping[str, Any] = {
    "learning_rate": 3e-4,
    "environment.count": 64.0,
    "environment.options.frame_skip": 1.0,
    "environment.options.market.fee": 0.002,
    "environment.options.wrappers.frame_stack.count": 2.0,
    "environment.options.wrappers.1.steps": 50.0,
}


def resolved(search: Mapping[str, Any] = SEARCH, **environment: Any) -> pb.TournamentSpec:
    values = {
        "environment": {"id": "python:module:factory", "count": 8, "options": OPTIONS, "search": search} | environment,
        "algorithms": {"ppo": {}, "dqn": {"hyperparameters": {"environment.count": 16}}},
        "objective": {"target_return": 475.0},
    }
    return resolve(parse(values, source="test"))


def options(environment: pb.EnvironmentSpec) -> dict[str, Any]:
    return dict(json_format.MessageToDict(environment.options))


def test_every_algorithm_gets_the_searched_keys_unless_it_has_its_own() -> None:
    spec = resolved()
    ppo, dqn = (spec.algorithms[name].hyperparameters for name in ("ppo", "dqn"))
    assert [choice.number_value for choice in ppo["environment.count"].choices] == [8, 64]
    assert ppo["environment.count"].value.number_value == 8
    assert not dqn["environment.count"].choices
    assert dqn["environment.count"].value.number_value == 16
    fee = dqn["environment.options.market.fee"]
    assert (fee.low, fee.high, fee.scale, fee.value.number_value) == (0.0001, 0.01, pb.SCALE_LOG, 0.001)
    assert ppo["environment.options.frame_skip"].value.number_value == 2
    assert ppo["environment.options.wrappers.frame_stack.count"].value.number_value == 4


def test_a_resolved_specification_resolves_to_itself_and_survives_toml(tmp_path: Any) -> None:
    spec = resolved(search_in_evaluation=["options.frame_skip"])
    assert resolve(spec) == spec
    assert resolve(parse(to_values(spec), source="again")) == spec
    (tmp_path / "spec.toml").write_text(to_toml(spec))
    assert resolve(parse(read_toml(tmp_path / "spec.toml"), source="toml")) == spec


def test_keys_need_no_quotes_in_toml() -> None:
    nested = {
        "count": {"choices": [8, 64]},
        "options": {
            "frame_skip": {"choices": [1, 2]},
            "market": {"fee": {"low": 0.0001, "high": 0.01, "scale": "log"}},
            "wrappers": {"frame_stack": {"count": {"choices": [2, 4]}}, "1": {"steps": {"choices": [50, 100]}}},
        },
    }
    assert resolved(nested) == resolved()


def test_an_option_that_the_environment_does_not_set_has_the_first_choice() -> None:
    spec = resolved({"options.sticky": {"choices": [True, False]}})
    assert spec.algorithms["ppo"].hyperparameters["environment.options.sticky"].value.bool_value


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"count": {"low": 0, "high": 8}}, "expected low < high within 1 to 1e+06"),
        ({"count": {"choices": [1.5]}}, "environment.count = 1.5: expected a whole number from 1 to"),
        ({"id": {"choices": ["a"]}}, "only environment.count and environment.options.NAME can be searched"),
        ({"options.frame_skip": {"choices": [1, "two"]}}, "frame_skip = 'two': expected a number"),
        ({"options.wrappers": {"choices": ["a"]}}, "expected options.wrappers.NAME.OPTION"),
        ({"options.wrappers.pixels.width": {"choices": [1]}}, "has no wrapper 'pixels', or more than one"),
        ({"options.wrappers.2.width": {"choices": [1]}}, "has no wrapper '2'"),
        ({"options.speed": {"low": 1, "high": 2}}, "set it in environment.options, or give `value` with the range"),
        ({"options.split": {"choices": ["train", "backtest"]}}, "options that choose the data cannot be searched"),
        ({"options.train_end": {"choices": ["2020-01-01"]}}, "options that choose the data cannot be searched"),
        ({"options.market": {"choices": [1, 2]}}, "only numbers, texts, true and false can be searched"),
        ({"options.frame_skip": {"choices": [1, 2], "when": {"discount": 0.9}}}, "frame_skip is structural"),
    ],
)
def test_what_cannot_be_searched_is_refused_on_one_line(search: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved(search)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_only_searched_keys_can_apply_in_evaluations() -> None:
    with pytest.raises(InvalidArgument, match=r"search_in_evaluation: 'options.speed' is not searched"):
        resolved(search_in_evaluation=["options.speed"])
    with pytest.raises(InvalidArgument, match="search_in_evaluation = 'count': expected a list"):
        resolved(search_in_evaluation="count")


def test_an_agent_trains_in_its_own_environment() -> None:
    spec = resolved()
    environment = training_environment(spec.environment, AGENT)
    assert environment.count == 64
    assert options(environment) == {
        "frame_skip": 1.0,
        "market": {"fee": 0.002},
        "wrappers": [{"name": "frame_stack", "count": 2.0}, {"name": "time_limit", "steps": 50.0}],
    }
    assert training_environment(spec.environment, {"learning_rate": 1e-3}) == spec.environment
    assert algorithm_values(AGENT) == {"learning_rate": 3e-4}


def test_its_policy_is_scored_with_the_options_of_the_specification_and_its_own_observations() -> None:
    spec = resolved()
    assert options(evaluation_environment(spec.environment, AGENT, spec.environment)) == {
        "frame_skip": 2.0,
        "market": {"fee": 0.001},
        "wrappers": [{"name": "frame_stack", "count": 2.0}, {"name": "time_limit", "steps": 100.0}],
    }
    listed = resolved(search_in_evaluation=["options.frame_skip", "count"])
    scored_in = evaluation_environment(listed.environment, AGENT, listed.environment)
    assert options(scored_in)["frame_skip"] == 1.0
    assert scored_in.count == 8  # an evaluation has its own number of environments


def test_an_evaluation_without_the_wrapper_is_left_as_it_is() -> None:
    spec = resolved()
    bare = pb.EnvironmentSpec(id=spec.environment.id, count=4)
    assert evaluation_environment(bare, AGENT, spec.environment) == bare


@pytest.mark.parametrize(
    "training", [{"name": "shape_rewards", "function": "python:mine:shaped"}, {"name": "normalize_rewards"}]
)
def test_evaluations_leave_out_only_the_wrappers_that_change_rewards_for_training(training: dict[str, str]) -> None:
    wrappers = [{"name": "frame_stack", "count": 2}, training]
    environment = pb.EnvironmentSpec(id="cartpole")
    environment.options.update({"wrappers": wrappers, "max_episode_steps": 100})
    scored = evaluation_environment(environment, {}, environment)
    assert json_format.MessageToDict(scored.options) == {"wrappers": wrappers[:1], "max_episode_steps": 100}
    assert json_format.MessageToDict(training_environment(environment, {}).options)["wrappers"] == wrappers


@pytest.mark.parametrize(("id", "address"), [("stocks", {}), ("grpc://market:50070", {"id": "stocks"})])
def test_evaluations_of_stocks_play_whole_first_episodes(id: str, address: dict[str, str]) -> None:
    environment = pb.EnvironmentSpec(id=id)
    environment.options.update({"staggered": True, "episode_days": 63, **address})
    scored = evaluation_environment(environment, {}, environment)
    assert json_format.MessageToDict(scored.options) == {"episode_days": 63, **address}
    assert json_format.MessageToDict(training_environment(environment, {}).options)["staggered"]
