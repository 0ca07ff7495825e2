"""Starts are checked as values are."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from podrace.errors import InvalidArgument
from podrace.specification.files import to_toml, to_values
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def resolved(starts: Sequence[Mapping[str, Any]], **evolution: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {"starts": starts, "hyperparameters": {"epochs": {"choices": [4, 8]}}}},
        "objective": {"target_return": 475.0},
        "evolution": evolution,
    }
    return resolve(parse(values, source="test"))


def test_starts_are_kept_and_written_as_toml() -> None:
    spec = resolved([{"learning_rate": 3e-4, "epochs": 8}, {"learning_rate": 1e-3, "hidden_sizes": [256, 256]}])
    assert "starts = [{ epochs = 8, learning_rate = 0.0003 }, " in to_toml(spec)
    assert resolve(parse(to_values(spec), source="again")) == spec


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({}, "algorithms.ppo.starts[1]: is empty"),
        ({"lr": 1e-3}, "algorithms.ppo.starts[1].lr: unknown hyperparameter 'lr'"),
        ({"epochs": 1.5}, "starts[1].epochs = 1.5: expected a whole number"),
        ({"epochs": 5}, "starts[1].epochs: value 5.0 is not among its choices"),
        ({"learning_rate": 0.1}, "starts[1].learning_rate: value 0.1 is outside its range 0.0001 to 0.003"),
    ],
)
def test_wrong_starts_are_refused_on_one_line(start: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolved([{"epochs": 4}, start])
    assert words in caught.value.message


def test_starts_that_would_never_be_tried_are_refused() -> None:
    starts = [{"epochs": 4}, {"epochs": 8}]
    with pytest.raises(InvalidArgument, match=r"population_size = 1: is less than the 2 entries of algorithms\.NAME"):
        resolved(starts, strategy="truncation", population_size=1)
    with pytest.raises(InvalidArgument, match=r"the first agents start from this agent, so algorithms\.NAME\.starts"):
        resolved(starts, ancestor_agent_id="other-abc123-a4")
