"""Tests user-defined algorithms in specifications: what they declare is checked, resolved and read as data."""

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument
from podrace.specification import catalog
from podrace.specification.catalog import Algorithm, Hyperparameter, Search
from podrace.specification.declaration import declared_by, hyperparameter
from podrace.specification.declared_algorithms import declaration_message, entry_of
from podrace.specification.files import to_toml, to_values
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import SCALE_LOG, AlgorithmDeclaration, AlgorithmSpec, TournamentSpec

NAME = "python:mine:Mine"
EVERY_TYPE = Algorithm(
    "what it is",
    ("discrete",),
    {
        "rate": Hyperparameter(0.5, "a number", 0.0, 1.0, scale="log", search=Search(0.1, 0.9, 0.25)),
        "discount": Hyperparameter(0.9, "a number below 1", 0.0, 1.0, scale="reverse_log", wide=Search(0.8, 0.99)),
        "atoms": Hyperparameter(51, "a whole number", 2, 1000, structural=True),
        "double": Hyperparameter(True, "a flag"),
        "kind": Hyperparameter("one", "a text", choices=("one", "two")),
        "dataset": Hyperparameter("", "any text"),
        "hidden_sizes": Hyperparameter((64, 64), "a list", 1, 1e5, structural=True),
    },
)


def specification(entry: Algorithm = EVERY_TYPE, **algorithm: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "cartpole"},
        "algorithms": {NAME: algorithm},
        "objective": {"target_return": 475.0},
    }
    spec = parse(values, source="test")
    spec.algorithms[NAME].declaration.CopyFrom(declaration_message(entry))
    return spec


def test_a_declaration_travels_unchanged() -> None:
    message = AlgorithmDeclaration.FromString(declaration_message(EVERY_TYPE).SerializeToString())
    assert entry_of(NAME, AlgorithmSpec(declaration=message)) == EVERY_TYPE
    for name, entry in catalog.ALGORITHMS.items():
        # Declared algorithms train one agent.
        alone = replace(entry, teams=False)
        assert entry_of("mine", AlgorithmSpec(declaration=declaration_message(entry))) == alone, name


def test_a_declared_algorithm_is_resolved_like_a_built_in_one() -> None:
    resolved = resolve(specification(hyperparameters={"atoms": 21}))
    found = resolved.algorithms[NAME].hyperparameters
    assert found.keys() == EVERY_TYPE.hyperparameters.keys()
    rate = found["rate"]
    assert (rate.low, rate.high, rate.scale, rate.zero_probability) == (0.1, 0.9, SCALE_LOG, 0.25)
    assert found["atoms"].value.number_value == 21
    assert found["kind"].value.string_value == "one"
    assert resolve(resolved) == resolved


def test_the_preset_wide_applies_to_declared_algorithms() -> None:
    spec = specification()
    spec.search = "wide"
    assert resolve(spec).algorithms[NAME].hyperparameters["discount"].low == 0.8


def test_a_resolved_specification_can_be_written_and_read() -> None:
    resolved = resolve(specification())
    assert resolve(parse(to_values(resolved), source="test")) == resolved
    assert NAME in to_toml(resolved)


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        ({"hyperparameters": {"atoms": 2000}}, "atoms = 2000.0: expected a whole number from 2 to 1000"),
        ({"hyperparameters": {"kind": "three"}}, "kind = 'three': expected one of one, two"),
        ({"hyperparameters": {"rat": 0.1}}, "unknown hyperparameter 'rat'"),
        ({"hyperparameters": {"rate": {"low": 0.5, "high": 2.0}}}, "range 0.5 to 2: expected low < high within 0 to 1"),
    ],
)
def test_values_are_checked_against_the_declaration(algorithm: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"algorithms\.{NAME}\.hyperparameters\..*{re.escape(problem)}"):
        resolve(specification(**algorithm))


def test_the_environment_must_have_an_action_space_of_a_declared_kind() -> None:
    with pytest.raises(InvalidArgument, match="handles continuous actions, but those of environment 'cartpole'"):
        resolve(specification(replace(EVERY_TYPE, action_kinds=("continuous",))))


def without(**changes: Any) -> AlgorithmDeclaration:
    message = declaration_message(EVERY_TYPE)
    for key, value in changes.items():
        message.hyperparameters[0].ClearField(key)  # type: ignore[arg-type]
        if value is not None:
            setattr(message.hyperparameters[0], key, value)
    return message


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (without(minimum=0.6), "hyperparameters.rate = 0.5: the default is outside its own range 0.6 to 1"),
        (without(minimum=None), "hyperparameters.rate has no range: give low and high"),
        (without(default_value=None), "hyperparameters.rate.default_value: does not have the type"),
        (without(type=4), "hyperparameters.rate.default_value: does not have the type HYPERPARAMETER_TYPE_TEXT"),
        (without(name="atoms"), "hyperparameters.atoms: is declared twice"),
        (without(name="a b"), "name 'a b': expected letters, digits and '_'"),
        (AlgorithmDeclaration(action_kinds=["sideways"]), "action_kinds = ['sideways']"),
        (AlgorithmDeclaration(), "action_kinds = []: expected some of continuous, discrete"),
    ],
)
def test_a_wrong_declaration_is_reported_in_one_line_with_its_key(
    declaration: AlgorithmDeclaration, problem: str
) -> None:
    spec = specification()
    spec.algorithms[NAME].declaration.CopyFrom(declaration)
    with pytest.raises(InvalidArgument, match=re.escape(f"algorithms.{NAME}.declaration.")) as caught:
        resolve(spec)
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (NAME, "has no declaration; the command and the Python client add it"),
        ("python:mine", "expected python:module:Class"),
        ("mine", "unknown algorithm 'mine'"),
    ],
)
def test_an_algorithm_without_a_declaration_is_refused(name: str, problem: str) -> None:
    spec = specification()
    del spec.algorithms[NAME]
    spec.algorithms[name].SetInParent()
    with pytest.raises(InvalidArgument, match=problem):
        resolve(spec)


def test_a_built_in_algorithm_needs_no_declaration() -> None:
    spec = specification()
    spec.algorithms["ppo"].declaration.CopyFrom(declaration_message(EVERY_TYPE))
    with pytest.raises(InvalidArgument, match=r"algorithms\.ppo\.declaration: is for user-defined algorithms"):
        resolve(spec)


@dataclass(frozen=True)
class Fine:
    learning_rate: float = 1e-3
    steps: int = hyperparameter(3, "steps", low=1, high=10, search=(1, 5))


@dataclass(frozen=True)
class Undeclared:
    steps: int = 3


@dataclass(frozen=True)
class Outside:
    learning_rate: float = 5.0


@dataclass(frozen=True)
class Backwards:
    steps: int = hyperparameter(3, "steps", low=1, high=10, search=(5, 2))


@dataclass(frozen=True)
class Required:
    steps: int


def test_a_field_is_declared_by_itself_or_has_the_range_of_an_inherited_one() -> None:
    found = declared_by(Fine, catalog.PPO.hyperparameters)
    assert found["learning_rate"] == replace(catalog.PPO.hyperparameters["learning_rate"], default=1e-3)
    assert found["steps"].search == Search(1, 5)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Undeclared, "hyperparameter steps has no range: declare it with hyperparameter(default, help, ...)"),
        (Outside, "hyperparameter learning_rate = 5: the default is outside its own range 1e-07 to 1"),
        (Backwards, "hyperparameter steps : search 5 to 2: expected low < high within its range"),
        (Required, "hyperparameter steps has no default"),
        (str, "is not a dataclass; decorate it with @dataclass(frozen=True)"),
    ],
)
def test_a_wrong_field_is_reported_in_one_line_with_key_class_and_line(settings: type[Any], problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        declared_by(settings, catalog.PPO.hyperparameters)
    assert caught.value.message.startswith(problem)
    assert caught.value.reason == UNUSABLE_ALGORITHM
    if settings is not str:
        line = int(re.findall(rf"{settings.__name__}, test_declared_algorithms\.py:(\d+)\)", caught.value.message)[0])
        source = open(__file__).read().splitlines()  # noqa: SIM115, PTH123
        assert source[line - 1].strip().startswith(("steps", "learning_rate"))
