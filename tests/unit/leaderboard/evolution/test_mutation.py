from random import Random

import pytest
from google.protobuf import struct_pb2

from leaderboard.evolution.mutation import describe_changes, mutate
from leaderboard.evolution.space import Range, Space, Value, movable_spaces, spaces_of
from podrace.specification import catalog
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, EvolutionSpec, HyperparameterSpec

PARENT: dict[str, Value] = {"learning_rate": 1e-3, "clip_range": 0.2, "epochs": 4.0, "hidden_sizes": [64.0, 64.0]}
SPACES: dict[str, Space] = {
    "learning_rate": Range(1e-4, 1e-2, logarithmic=True),
    "epochs": Range(1, 10, whole=True),
}


def evolution(mutation: float = 1.0, resample: float = 0.0, factor: float = 1.25) -> EvolutionSpec:
    return EvolutionSpec(mutation_probability=mutation, resample_probability=resample, mutation_factor=factor)


def test_only_searched_hyperparameters_change() -> None:
    child = mutate(PARENT, SPACES, evolution(), Random(0))
    assert child["clip_range"] == 0.2
    assert child["learning_rate"] in (pytest.approx(1.25e-3), pytest.approx(8e-4))
    assert child["epochs"] in (2.0, 6.0)
    assert child.keys() == PARENT.keys()


def test_structural_hyperparameters_never_change_in_a_child() -> None:
    structural = [name for name, declared in catalog.PPO.hyperparameters.items() if declared.structural]
    assert "hidden_sizes" in structural
    choices = [struct_pb2.Value(number_value=number) for number in (1, 2)]
    searched = {name: HyperparameterSpec(choices=choices) for name in (*structural, "epochs")}
    algorithm = AlgorithmSpec(hyperparameters=searched)
    assert spaces_of("ppo", algorithm).keys() == searched.keys()
    assert movable_spaces("ppo", algorithm).keys() == {"epochs"}


def test_the_parent_is_not_modified() -> None:
    before = dict(PARENT)
    mutate(PARENT, SPACES, evolution(), Random(0))
    assert before == PARENT


def test_probability_zero_is_a_clone() -> None:
    assert mutate(PARENT, SPACES, evolution(mutation=0.0), Random(0)) == PARENT


def test_mutations_happen_with_the_configured_probability() -> None:
    random = Random(0)
    children = [mutate(PARENT, SPACES, evolution(mutation=0.3), random) for _ in range(2000)]
    for name in ("learning_rate", "epochs"):
        share = sum(child[name] != PARENT[name] for child in children) / len(children)
        assert share == pytest.approx(0.3, abs=0.04)


def test_resampling_draws_from_the_whole_range() -> None:
    random = Random(0)
    children = [mutate(PARENT, SPACES, evolution(resample=1.0), random) for _ in range(500)]
    rates = [rate for child in children if isinstance(rate := child["learning_rate"], float)]
    assert min(rates) < 2e-4
    assert max(rates) > 5e-3
    assert len(set(rates)) == 500


def test_changes_are_described_with_both_values() -> None:
    child = PARENT | {"learning_rate": 1.25e-3, "epochs": 5.0}
    assert describe_changes(PARENT, child) == "epochs 4 -> 5, learning_rate 0.001 -> 0.00125"
    assert describe_changes(PARENT, PARENT) == ""
