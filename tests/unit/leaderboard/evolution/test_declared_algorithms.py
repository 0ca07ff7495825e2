"""Tests that user-defined algorithms are drawn and mutated by what they declare."""

from random import Random

from leaderboard.evolution.mutation import mutate
from leaderboard.evolution.space import is_structural, is_whole, movable_spaces, spaces_of
from podrace.specification.catalog import Algorithm, Hyperparameter, Search
from podrace.specification.declared_algorithms import declaration_message
from podrace.specification.resolve import parse, resolve

NAME = "python:mine:Mine"
DECLARED = Algorithm(
    "",
    ("discrete",),
    {
        "weight": Hyperparameter(0.1, "", 0.0, 1.0, scale="log", search=Search(0.01, 1.0)),
        "passes": Hyperparameter(4, "", 1, 100, search=Search(1, 20)),
        "atoms": Hyperparameter(51, "", 2, 100, search=Search(11, 51), structural=True),
        "fixed": Hyperparameter(0.5, "", 0.0, 1.0),
    },
)


def test_children_stay_in_the_declared_ranges_and_keep_structural_values() -> None:
    values = {
        "environment": {"id": "cartpole"},
        "algorithms": {NAME: {}},
        "objective": {"target_return": 475.0},
        "evolution": {"mutation_probability": 1.0},
    }
    given = parse(values, source="test")
    given.algorithms[NAME].declaration.CopyFrom(declaration_message(DECLARED))
    spec = resolve(given)
    algorithm = spec.algorithms[NAME]
    assert spaces_of(NAME, algorithm).keys() == {"weight", "passes", "atoms"}
    spaces = movable_spaces(NAME, algorithm)
    assert spaces.keys() == {"weight", "passes"}
    assert is_whole(NAME, algorithm, "passes")
    assert is_structural(NAME, algorithm, "atoms")
    parent = {"weight": 0.1, "passes": 4.0, "atoms": 51.0, "fixed": 0.5}
    children = [mutate(parent, spaces, spec.evolution, Random(seed)) for seed in range(50)]
    assert all(child["atoms"] == 51.0 and child["fixed"] == 0.5 for child in children)
    assert all(0.01 <= float(str(child["weight"])) <= 1.0 for child in children)
    assert all(float(str(child["passes"])).is_integer() for child in children)
    assert len({child["weight"] for child in children}) > 1
