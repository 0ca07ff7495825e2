"""Conditions name hyperparameters and values that exist, and do not depend on themselves."""

from collections.abc import Mapping
from typing import Any

import pytest

from podrace.errors import InvalidArgument
from podrace.specification.conditions import order_of
from podrace.specification.files import to_toml, to_values
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

EXPONENT = {"low": 0.3, "high": 0.9, "when": {"prioritized": True}}
PRIORITIZED = {"choices": [False, True]}


def resolved(hyperparameters: Mapping[str, Any]) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"dqn": {"hyperparameters": hyperparameters}},
        "objective": {"target_return": 475.0},
    }
    return resolve(parse(values, source="test"))


def test_a_condition_is_kept_and_written_as_toml() -> None:
    spec = resolved({"priority_exponent": EXPONENT, "prioritized": PRIORITIZED})
    when = spec.algorithms["dqn"].hyperparameters["priority_exponent"].when
    assert {key: value.bool_value for key, value in when.items()} == {"prioritized": True}
    assert "when = { prioritized = true }" in to_toml(spec)
    assert resolve(parse(to_values(spec), source="again")) == spec


def test_a_default_search_may_have_a_condition() -> None:
    rate = resolved({"learning_rate": {"when": {"n_step": [1, 3]}}}).algorithms["dqn"].hyperparameters["learning_rate"]
    assert (rate.low, rate.high) == (1e-4, 2e-3)


def test_conditions_are_ordered_by_what_they_depend_on() -> None:
    chain = {
        "batch_size": {"choices": [64, 128], "when": {"priority_exponent": 0.6}},
        "priority_exponent": {"choices": [0.6, 0.8], "when": {"prioritized": True}},
        "prioritized": PRIORITIZED,
    }
    spec = resolved(chain)
    assert order_of(spec.algorithms["dqn"].hyperparameters) == ["priority_exponent", "batch_size"]


@pytest.mark.parametrize(
    ("hyperparameters", "words"),
    [
        ({"priority_exponent": {"low": 0, "high": 1, "when": {"prioritised": True}}}, "did you mean 'prioritized'"),
        ({"priority_exponent": {"low": 0, "high": 1, "when": {"prioritized": 1}}}, "prioritized = 1.0: expected true"),
        ({"priority_exponent": {"low": 0, "high": 1, "when": {"prioritized": []}}}, "prioritized = []: is never met"),
        ({"priority_exponent": {"value": 0.5, "when": {"prioritized": True}}}, "priority_exponent is not searched"),
        (
            {"huber_delta": {"low": 0, "high": 1, "when": {"n_step": [1, 2]}}, "n_step": {"choices": [1, 3]}},
            "when.n_step = 2.0: is never met; the choices are 1.0, 3.0",
        ),
        (
            {
                "n_step": {"choices": [1, 3], "when": {"batch_size": 64}},
                "batch_size": {"choices": [64, 128], "when": {"n_step": 1}},
            },
            "conditions form a cycle: ",
        ),
        ({"n_step": {"choices": [1, 3], "when": {"n_step": 1}}}, "cycle: n_step -> n_step"),
        (
            {"hidden_sizes": {"choices": [[8], [16]], "when": {"n_step": 1}}},
            "hidden_sizes is structural, so children keep it, but n_step may change",
        ),
    ],
)
def test_wrong_conditions_are_refused_on_one_line(hyperparameters: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved(hyperparameters)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
