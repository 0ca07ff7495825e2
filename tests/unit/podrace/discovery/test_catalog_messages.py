from typing import Any

import pytest
from google.protobuf.struct_pb2 import Value

from podrace.discovery import catalog_messages
from podrace.discovery.v1 import discovery_pb2 as pb
from podrace.specification import evolution_settings
from podrace.specification.catalog import ALGORITHMS, SIMULATORS, STRATEGIES, Search
from podrace.tournament.v1 import tournament_pb2

LISTED = {entry.name: entry for entry in catalog_messages.list_algorithms().algorithms}


def plain(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return tuple(plain(each) for each in value.list_value.values)
    assert kind is not None
    return getattr(value, kind)


def range_of(found: pb.SearchRange) -> Search:
    return Search(found.minimum, found.maximum, found.zero_probability)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_listed_with_every_hyperparameter_as_in_the_catalog(name: str) -> None:
    listed, entry = LISTED[name], ALGORITHMS[name]
    assert listed.description == entry.help
    assert [pb.ActionKind.Name(kind) for kind in listed.action_kinds] == [
        f"ACTION_KIND_{kind.upper()}" for kind in entry.action_kinds
    ]
    assert [each.name for each in listed.hyperparameters] == list(entry.hyperparameters)
    for each in listed.hyperparameters:
        expected = entry.hyperparameters[each.name]
        assert plain(each.default_value) == expected.default
        assert (each.minimum if each.HasField("minimum") else None) == expected.low
        assert (each.maximum if each.HasField("maximum") else None) == expected.high
        assert tuple(each.choices) == expected.choices
        assert tournament_pb2.Scale.Name(each.scale) == f"SCALE_{expected.scale.upper()}"
        assert each.structural == expected.structural
        assert (range_of(each.search) if each.HasField("search") else None) == expected.search
        assert (range_of(each.wide_search) if each.HasField("wide_search") else None) == expected.wide


def test_the_type_of_a_hyperparameter_is_that_of_its_default() -> None:
    types = {each.name: each.type for each in LISTED["ppo"].hyperparameters}
    assert types["hidden_sizes"] == pb.VALUE_TYPE_INTEGERS
    assert types["activation"] == pb.VALUE_TYPE_TEXT
    assert types["normalize_rewards"] == pb.VALUE_TYPE_BOOLEAN
    assert types["horizon"] == pb.VALUE_TYPE_INTEGER
    assert types["discount"] == pb.VALUE_TYPE_REAL


def test_simulators_are_those_of_the_catalog_and_families_are_marked() -> None:
    listed = {each.environment_id: each for each in catalog_messages.list_simulators().simulators}
    assert list(listed) == list(SIMULATORS)
    assert listed["atari:<game>"].family
    assert listed["atari:<game>"].action_kind == pb.ACTION_KIND_DISCRETE
    assert not listed["cartpole"].family
    assert listed["cartpole"].on_gpu


def test_strategies_are_listed_with_the_defaults_that_are_filled_in() -> None:
    listed = {each.name: each for each in catalog_messages.list_strategies().strategies}
    assert list(listed) == list(STRATEGIES)
    for name, strategy in listed.items():
        filled = tournament_pb2.EvolutionSpec(strategy=name)
        evolution_settings.fill(filled)
        for setting in strategy.settings:
            assert plain(setting.default_value) == getattr(filled, setting.name), f"{name}: {setting.name}"
        assert {setting.name for setting in strategy.settings} == {
            field.name for field, _ in filled.ListFields() if field.name != "strategy"
        }
    settings = {setting.name: setting for setting in listed["asha"].settings}
    assert not settings["rung_factor"].shared
    assert settings["board_capacity"].shared
    assert settings["board_capacity"].minimum == 1.0
    assert list(settings["allocation"].choices) == ["ratio", "halving"]
