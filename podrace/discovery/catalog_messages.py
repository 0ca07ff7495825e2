"""Builds the lists of DiscoveryService from the catalog of the specification. Does not import torch."""

from collections.abc import Collection

from google.protobuf.struct_pb2 import Value

from podrace.discovery.event_kinds import EVENT_KINDS
from podrace.discovery.v1 import discovery_pb2 as pb
from podrace.specification import catalog, evolution_settings
from podrace.specification.catalog import Search
from podrace.specification.resolve import CHOICES, LIMITS
from podrace.tournament.v1 import tournament_pb2

_ACTION_KINDS = {
    "": pb.ACTION_KIND_UNSPECIFIED,
    "continuous": pb.ACTION_KIND_CONTINUOUS,
    "discrete": pb.ACTION_KIND_DISCRETE,
    "multi_discrete": pb.ACTION_KIND_MULTI_DISCRETE,
    "multi_binary": pb.ACTION_KIND_MULTI_BINARY,
}
_TYPES = {bool: pb.VALUE_TYPE_BOOLEAN, int: pb.VALUE_TYPE_INTEGER, float: pb.VALUE_TYPE_REAL, str: pb.VALUE_TYPE_TEXT}


def list_algorithms() -> pb.ListAlgorithmsResponse:
    """Returns all algorithms with their hyperparameters."""
    return pb.ListAlgorithmsResponse(
        algorithms=[
            pb.Algorithm(
                name=name,
                description=entry.help,
                action_kinds=[_ACTION_KINDS[kind] for kind in entry.action_kinds],
                hyperparameters=[_hyperparameter(key, each) for key, each in entry.hyperparameters.items()],
            )
            for name, entry in catalog.ALGORITHMS.items()
        ]
    )


def list_simulators() -> pb.ListSimulatorsResponse:
    """Returns all simulators and families of simulators."""
    return pb.ListSimulatorsResponse(
        simulators=[
            pb.Simulator(
                environment_id=name,
                description=entry.help,
                action_kind=_ACTION_KINDS[entry.action_kind],
                on_gpu=entry.on_gpu,
                family="<" in name,
            )
            for name, entry in catalog.SIMULATORS.items()
        ]
    )


def list_strategies() -> pb.ListStrategiesResponse:
    """Returns all strategies with the settings that are filled in for each."""
    return pb.ListStrategiesResponse(
        strategies=[
            pb.Strategy(name=name, description=line, settings=_settings(name))
            for name, line in catalog.STRATEGIES.items()
        ]
    )


def list_event_kinds() -> pb.ListEventKindsResponse:
    """Returns all kinds of events."""
    kinds = [pb.EventKind(kind=kind, description=line) for kind, line in EVENT_KINDS.items()]
    return pb.ListEventKindsResponse(event_kinds=kinds)


def _hyperparameter(name: str, entry: catalog.Hyperparameter) -> pb.Hyperparameter:
    message = pb.Hyperparameter(
        name=name,
        description=entry.help,
        type=_type_of(entry.default),
        default_value=_value(entry.default),
        choices=entry.choices,
        scale=tournament_pb2.Scale.Value(f"SCALE_{entry.scale.upper()}"),
        structural=entry.structural,
        search=_range(entry.search),
        wide_search=_range(entry.wide),
    )
    if entry.low is not None:
        message.minimum = entry.low
    if entry.high is not None:
        message.maximum = entry.high
    return message


def _range(search: Search | None) -> pb.SearchRange | None:
    return search and pb.SearchRange(minimum=search.low, maximum=search.high, zero_probability=search.zero_probability)


def _settings(strategy: str) -> list[pb.StrategySetting]:
    own = {**evolution_settings.DEFAULTS, **evolution_settings.SETTINGS[strategy]}
    shared = evolution_settings.DEFAULTS.keys()
    return [_setting(name, default, shared) for name, default in own.items() if name != "strategy"]


def _setting(name: str, default: str | float, shared: Collection[str]) -> pb.StrategySetting:
    low, high = LIMITS.get(f"evolution.{name}", (None, None))
    return pb.StrategySetting(
        name=name,
        type=_type_of(default),
        default_value=_value(default),
        minimum=low,
        maximum=high,
        choices=CHOICES.get(f"evolution.{name}", ()),
        shared=name in shared,
    )


def _type_of(default: catalog.Value) -> "pb.ValueType.ValueType":
    return pb.VALUE_TYPE_INTEGERS if isinstance(default, tuple) else _TYPES[type(default)]


def _value(default: catalog.Value) -> Value:
    if isinstance(default, bool):
        return Value(bool_value=default)
    if isinstance(default, str):
        return Value(string_value=default)
    if isinstance(default, tuple):
        found = Value()
        found.list_value.extend(default)
        return found
    return Value(number_value=default)
