"""Checks conditions between hyperparameters, and applies them to the values of an agent. Pure.

    batch_size = { choices = [64, 256], when = { prioritized = true, n_step = [1, 3] } }

A hyperparameter is active in an agent if the agent has all values of its condition, or if it has no condition. The
value of an inactive one has no meaning and is that of the specification, so agents that differ in nothing else are
equal.
"""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from google.protobuf import json_format, struct_pb2

from podrace.config import unknown
from podrace.specification.catalog import Hyperparameter
from podrace.specification.hyperparameter_checks import check_value
from podrace.specification.messages import bad_spec
from podrace.tournament.v1 import tournament_pb2 as pb


def check_conditions(
    hyperparameters: Mapping[str, pb.HyperparameterSpec], declared: Mapping[str, Hyperparameter], where: str
) -> None:
    """Checks the conditions of one algorithm.

    Args:
        hyperparameters: Every hyperparameter of the algorithm, resolved.
        declared: Those of the catalog.
        where: Dotted key of the table, for error messages.

    Raises:
        InvalidArgument: A condition names an unknown hyperparameter or a value that it cannot have, belongs to a
            hyperparameter that is not searched, or depends on itself.
    """
    for name in sorted(hyperparameters):
        spec, path = hyperparameters[name], f"{where}.{name}"
        if spec.when and not is_searched(spec):
            raise bad_spec(
                f"{path}.when: {name} is not searched; give it a range or choices, or leave the condition out"
            )
        for key in sorted(spec.when):
            if key not in declared:
                raise bad_spec(unknown(f"{path}.when.{key}", "hyperparameter", key, declared))
            if declared[name].structural and not declared[key].structural:
                raise bad_spec(
                    f"{path}.when.{key}: {name} is structural, so children keep it, but {key} may change in a child;"
                    " use a structural hyperparameter"
                )
            if not alternatives(spec.when[key], hyperparameters[key].value):
                raise bad_spec(f"{path}.when.{key} = []: is never met; give at least one value")
            for wanted in alternatives(spec.when[key], hyperparameters[key].value):
                _check_wanted(wanted, hyperparameters[key], declared[key], f"{path}.when.{key}")
    try:
        order_of(hyperparameters)
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise bad_spec(f"{where}: conditions form a cycle: {cycle}; remove one of them") from None


def settled(hyperparameters: Mapping[str, pb.HyperparameterSpec], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of an agent with those of the specification for inactive hyperparameters.

    Args:
        hyperparameters: Every hyperparameter of the algorithm, resolved.
        values: By name, as JSON.
    """
    result = dict(values)
    for name in order_of(hyperparameters):
        if not is_active(hyperparameters[name], result):
            result[name] = _plain(hyperparameters[name].value)
    return result


def is_active(spec: pb.HyperparameterSpec, values: Mapping[str, Any]) -> bool:
    """Returns whether an agent with these values has those of the condition of a hyperparameter."""
    return all(_meets(values.get(key), spec.when[key]) for key in spec.when)


def _meets(value: Any, wanted: struct_pb2.Value) -> bool:
    like = json_format.ParseDict(value, struct_pb2.Value())
    return value in [_plain(one) for one in alternatives(wanted, like)]


def is_searched(spec: pb.HyperparameterSpec) -> bool:
    """Returns whether a hyperparameter has a range or choices."""
    return spec.HasField("low") or len(spec.choices) > 0


def order_of(hyperparameters: Mapping[str, pb.HyperparameterSpec]) -> list[str]:
    """Returns the hyperparameters that have conditions, each after those that its condition depends on.

    Raises:
        CycleError: A condition depends on itself.
    """
    graph = {name: sorted(hyperparameters[name].when) for name in sorted(hyperparameters) if hyperparameters[name].when}
    return [name for name in TopologicalSorter(graph).static_order() if name in graph]


def alternatives(wanted: struct_pb2.Value, like: struct_pb2.Value) -> list[struct_pb2.Value]:
    """Returns the values that satisfy a condition.

    Args:
        wanted: A value, or a list of values. If the values themselves are lists, a list of lists.
        like: Any value of the hyperparameter that the condition is about.
    """
    items = list(wanted.list_value.values)
    if not wanted.HasField("list_value"):
        return [wanted]
    is_one_value = like.HasField("list_value") and not any(item.HasField("list_value") for item in items)
    return [wanted] if is_one_value else items


def _check_wanted(wanted: struct_pb2.Value, spec: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    check_value(wanted, declared, where)
    if spec.choices and wanted not in spec.choices:
        shown = ", ".join(repr(_plain(choice)) for choice in spec.choices)
        raise bad_spec(f"{where} = {_plain(wanted)!r}: is never met; the choices are {shown}")


def _plain(value: struct_pb2.Value) -> Any:
    return json_format.MessageToDict(value)
