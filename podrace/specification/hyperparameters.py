"""Fills in and checks the algorithms of a specification and their hyperparameters."""

import math
from typing import Any, cast

from google.protobuf import json_format, struct_pb2

from podrace.config import unknown
from podrace.specification import catalog
from podrace.specification.catalog import Hyperparameter
from podrace.specification.messages import bad_spec
from podrace.tournament.v1 import tournament_pb2 as pb

_SCALES = {"linear": pb.SCALE_LINEAR, "log": pb.SCALE_LOG, "reverse_log": pb.SCALE_REVERSE_LOG}
LARGEST_ZERO_PROBABILITY = 0.99
"""Largest `zero_probability`; a range that is hardly ever drawn from would be a mistake."""


def resolve_algorithms(spec: pb.TournamentSpec) -> None:
    """Completes all algorithms of a specification in place.

    Raises:
        InvalidArgument: There is no algorithm, a name is unknown, or a value is wrong.
    """
    if not spec.algorithms:
        raise bad_spec("algorithms: empty; name at least one, for instance [algorithms.ppo]")
    for name in sorted(spec.algorithms):
        if name not in catalog.ALGORITHMS:
            raise bad_spec(unknown(f"algorithms.{name}", "algorithm", name, catalog.ALGORITHMS))
        algorithm, entry = spec.algorithms[name], catalog.ALGORITHMS[name]
        if not algorithm.HasField("ratio"):
            algorithm.ratio = 1.0
        if algorithm.ratio < 0:
            raise bad_spec(f"algorithms.{name}.ratio = {algorithm.ratio:g}: expected a number that is not negative")
        check_action_kind(name, entry, spec.environment.id)
        where = f"algorithms.{name}.hyperparameters"
        for key in sorted(algorithm.hyperparameters):
            if key not in entry.hyperparameters:
                raise bad_spec(unknown(f"{where}.{key}", "hyperparameter", key, entry.hyperparameters))
        for key, declared in entry.hyperparameters.items():
            _resolve_hyperparameter(algorithm.hyperparameters[key], declared, f"{where}.{key}")
    if not any(algorithm.ratio for algorithm in spec.algorithms.values()):
        raise bad_spec("algorithms: every ratio is 0, so no agent could be generated")


def check_action_kind(name: str, entry: catalog.Algorithm, environment_id: str) -> None:
    """Checks that an algorithm supports the action space of an environment, if the catalog knows that space.

    Raises:
        InvalidArgument: The algorithm does not support it.
    """
    simulator = catalog.SIMULATORS.get(environment_id)
    if simulator and simulator.action_kind and simulator.action_kind not in entry.action_kinds:
        raise bad_spec(
            f"algorithms.{name}: handles {' and '.join(entry.action_kinds)} actions,"
            f" but those of environment {environment_id!r} are {simulator.action_kind}"
        )


def _resolve_hyperparameter(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    """Completes one hyperparameter in place.

    Afterwards it has a value and, if it is searched, also a range with a scale, or choices.
    """
    searched = given.HasField("low") or given.HasField("high") or len(given.choices) > 0
    if not given.HasField("value") and not searched and declared.search:
        given.low, given.high, zero_probability = declared.search
        if zero_probability and not given.HasField("zero_probability"):
            given.zero_probability = zero_probability
    if given.HasField("low") != given.HasField("high"):
        raise bad_spec(f"{where}: low and high belong together")
    if given.HasField("zero_probability") and not given.HasField("low"):
        raise bad_spec(f"{where}.zero_probability: belongs to a range; give low and high too, or leave it out")
    if given.scale == pb.SCALE_UNSPECIFIED and given.HasField("low"):
        given.scale = _scale_of(given, declared)
    if not given.HasField("value"):
        given.value.CopyFrom(_first_value(given, declared))
    for value in (given.value, *given.choices):
        check_value(value, declared, where)
    if given.choices and given.value not in given.choices:
        raise bad_spec(f"{where}: value {json_format.MessageToDict(given.value)!r} is not among its choices")
    if given.HasField("low"):
        _check_range(given, declared, where)


def _scale_of(given: pb.HyperparameterSpec, declared: Hyperparameter) -> pb.Scale.ValueType:
    """Returns the declared scale, or else the linear one if the range reaches 1, where log(1 - x) has no value."""
    reaches_one = declared.scale == "reverse_log" and given.high >= 1 and not given.HasField("zero_probability")
    return pb.SCALE_LINEAR if reaches_one else _SCALES[declared.scale]


def _first_value(given: pb.HyperparameterSpec, declared: Hyperparameter) -> struct_pb2.Value:
    """Returns the first choice, or else the default, clipped to the range."""
    if given.choices:
        return given.choices[0]
    default = declared.default
    if given.HasField("low") and isinstance(default, int | float) and not isinstance(default, bool):
        inside = type(default)(min(max(default, given.low), given.high))
        default = default if default == extra_value(given) else inside
    plain: Any = list(default) if isinstance(default, tuple) else default
    return json_format.ParseDict(plain, struct_pb2.Value())


def extra_value(given: pb.HyperparameterSpec) -> float | None:
    """Returns the value that `zero_probability` is the probability of; None if there is none."""
    if not given.zero_probability:
        return None
    return 1.0 if given.scale == pb.SCALE_REVERSE_LOG else 0.0


def check_value(value: struct_pb2.Value, declared: Hyperparameter, where: str) -> None:
    """Checks the type and the range of a value.

    Raises:
        InvalidArgument: The value is wrong; the message names the key, the value and what is expected.
    """
    plain: Any = json_format.MessageToDict(value)
    default = declared.default
    if isinstance(default, bool):
        good, expected = isinstance(plain, bool), "true or false"
    elif isinstance(default, str):
        good, expected = plain in declared.choices, f"one of {', '.join(declared.choices)}"
    elif isinstance(default, tuple):
        good = isinstance(plain, list) and bool(plain) and all(_is_number(item, declared, whole=True) for item in plain)
        expected = f"a list of whole numbers from {declared.low:g} to {declared.high:g}"
    else:
        whole = isinstance(default, int)
        good = _is_number(plain, declared, whole=whole)
        expected = f"a {'whole ' if whole else ''}number from {declared.low:g} to {declared.high:g}"
    if not good:
        raise bad_spec(f"{where} = {plain!r}: expected {expected}")


def _is_number(value: object, declared: Hyperparameter, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return cast(float, declared.low) <= value <= cast(float, declared.high) and (not whole or value == int(value))


def _check_range(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    if isinstance(declared.default, bool | str | tuple) or declared.low is None or declared.high is None:
        raise bad_spec(f"{where}: has no range; give a value or choices")
    if not declared.low <= given.low < given.high <= declared.high:
        raise bad_spec(
            f"{where}: range {given.low:g} to {given.high:g}:"
            f" expected low < high within {declared.low:g} to {declared.high:g}"
        )
    _check_scale(given, declared, where)
    value = given.value.number_value
    if not given.low <= value <= given.high and value != extra_value(given):
        raise bad_spec(f"{where}: value {value:g} is outside its range {given.low:g} to {given.high:g}")


def _check_scale(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    """Checks that a range has a place on its scale, and `zero_probability`."""
    if given.scale == pb.SCALE_LOG and given.low <= 0:
        raise bad_spec(
            f"{where}: low = {given.low:g}: a logarithmic scale needs a positive range; to search 0 as well, set low to"
            " the smallest other value, and zero_probability to the probability of 0"
        )
    if given.scale == pb.SCALE_REVERSE_LOG and isinstance(declared.default, int):
        raise bad_spec(f"{where}: scale reverse_log is for numbers below 1, not for whole numbers; use log or linear")
    if given.scale == pb.SCALE_REVERSE_LOG and given.high >= 1:
        raise bad_spec(
            f"{where}: high = {given.high:g}: the scale reverse_log needs a range below 1; to search 1 as well, set"
            " high to the largest other value, and zero_probability to the probability of 1"
        )
    probability, extra = given.zero_probability, extra_value(given)
    if not 0 <= probability <= LARGEST_ZERO_PROBABILITY:
        raise bad_spec(
            f"{where}.zero_probability = {probability:g}: expected 0 to {LARGEST_ZERO_PROBABILITY:g}; for a fixed value"
            " give the value alone"
        )
    if probability and given.scale == pb.SCALE_LINEAR:
        raise bad_spec(
            f"{where}.zero_probability = {probability:g}: is for the scales log and reverse_log; a linear range can"
            " include the value itself"
        )
    if extra is not None and not cast(float, declared.low) <= extra <= cast(float, declared.high):
        raise bad_spec(
            f"{where}.zero_probability = {probability:g}: the value {extra:g} is not allowed here, only"
            f" {declared.low:g} to {declared.high:g}"
        )
