"""Checks values and ranges of hyperparameters against the catalog. Pure."""

import math
from typing import Any, cast

from google.protobuf import json_format, struct_pb2

from podrace.specification.catalog import Hyperparameter
from podrace.specification.messages import bad_spec
from podrace.tournament.v1 import tournament_pb2 as pb

LARGEST_ZERO_PROBABILITY = 0.99
"""Largest `zero_probability`; a range that is hardly ever drawn from would be a mistake."""


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
        good = isinstance(plain, str) and (plain in declared.choices or not declared.choices)
        expected = f"one of {', '.join(declared.choices)}" if declared.choices else "a text"
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


def check_range(given: pb.HyperparameterSpec, declared: Hyperparameter, where: str) -> None:
    """Checks the range of a hyperparameter and its place on the scale.

    Raises:
        InvalidArgument: The range is wrong; the message says how.
    """
    if isinstance(declared.default, bool | str | tuple) or declared.low is None or declared.high is None:
        raise bad_spec(f"{where}: has no range; give a value or choices")
    if not declared.low <= given.low < given.high <= declared.high:
        raise bad_spec(
            f"{where}: range {given.low:g} to {given.high:g}:"
            f" expected low < high within {declared.low:g} to {declared.high:g}"
        )
    _check_scale(given, declared, where)


def check_within(value: struct_pb2.Value, spec: pb.HyperparameterSpec, where: str) -> None:
    """Checks that a value of the right type lies in the range or the choices of a hyperparameter, if it has any.

    Raises:
        InvalidArgument: It does not.
    """
    if spec.choices and value not in spec.choices:
        raise bad_spec(f"{where}: value {json_format.MessageToDict(value)!r} is not among its choices")
    number = value.number_value
    if spec.HasField("low") and not spec.low <= number <= spec.high and number != extra_value(spec):
        raise bad_spec(f"{where}: value {number:g} is outside its range {spec.low:g} to {spec.high:g}")


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
