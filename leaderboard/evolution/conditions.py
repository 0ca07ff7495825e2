"""Applies conditions between hyperparameters (`when` in the specification) to the values of an agent. Pure.

A hyperparameter is active if the agent has all values of its condition, or if it has no condition. The value of an
inactive one has no meaning and is the specification's, so that agents that differ in nothing else are equal. Strategies
and plugins need not take conditions into account: leaderboard.evolution.agents settles the values of every agent.
"""

from collections.abc import Mapping
from random import Random

from google.protobuf import struct_pb2

from leaderboard.evolution.space import Value, is_structural, plain, spaces_of
from podrace.specification.conditions import order_of
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec


def settled(algorithm: AlgorithmSpec, values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the values with those of the specification for inactive hyperparameters."""
    result = dict(values)
    for name in order_of(algorithm.hyperparameters):
        if not is_active(algorithm, name, result):
            result[name] = plain(algorithm.hyperparameters[name].value)
    return result


def settled_child(
    name: str,
    algorithm: AlgorithmSpec,
    parent: Mapping[str, Value],
    values: Mapping[str, Value],
    random: Random,
) -> dict[str, Value]:
    """Returns the values of a child.

    A hyperparameter that was inactive in the parent and is active now is drawn, unless the child has another value than
    its parent already. Structural hyperparameters are always the parent's.

    Args:
        name: Name of the algorithm.
        algorithm: Its resolved specification.
        parent: Values of the parent.
        values: Values that a strategy or a plugin chose for the child.
        random: Random stream for the draws.
    """
    result = dict(values)
    for key in order_of(algorithm.hyperparameters):
        if is_structural(name, key):
            continue
        if not is_active(algorithm, key, result):
            result[key] = plain(algorithm.hyperparameters[key].value)
        elif not is_active(algorithm, key, parent) and result[key] == parent.get(key):
            result[key] = spaces_of(name, algorithm)[key].draw(random)
    return result


def is_active(algorithm: AlgorithmSpec, name: str, values: Mapping[str, Value]) -> bool:
    """Returns whether an agent with these values has those of the condition of a hyperparameter."""
    when = algorithm.hyperparameters[name].when
    return all(_meets(values.get(key), when[key]) for key in when)


def _meets(value: object, wanted: struct_pb2.Value) -> bool:
    """Returns whether a value is the wanted one, or one of a list of wanted ones."""
    one: object = plain(wanted)
    if not isinstance(one, list):
        return value == one
    is_one_value = isinstance(value, list) and not any(isinstance(item, list) for item in one)
    return value == one if is_one_value else value in one
