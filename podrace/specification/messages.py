"""Fills protobuf messages from nested TOML values and checks the values that no specification may have."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from podrace.config import unknown
from podrace.errors import BAD_SPEC, FieldViolation, InvalidArgument
from podrace.field_bounds import violations
from podrace.printable import printable
from podrace.tournament.v1 import tournament_pb2 as pb

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_DURATION_SECONDS = 315_576_000_000
_NESTED = {
    "podrace.tournament.v1.EnvironmentSpec.search": "options",
    "podrace.tournament.v1.AlgorithmSpec.hyperparameters": "environment",
}
"""Maps of hyperparameters in which keys that begin with this name have dots, and need not be quoted in TOML."""
_MAY_BE_ZERO = {"pool.cooldown_duration"}


def bad_spec(message: str, violations: Sequence[FieldViolation] = ()) -> InvalidArgument:
    """Returns the error for an invalid specification, with the reason BAD_SPEC.

    Args:
        message: `key: problem` or `key = value: problem`.
        violations: Keys and problems if the message has several; default: those of the message.
    """
    found = _KEY.fullmatch(message)
    own = [FieldViolation(found[1], found[2])] if found else []
    return InvalidArgument(message, reason=BAD_SPEC, violations=violations or own)


class Problems:
    """Collects what is wrong with a specification, so that it is reported at once.

    problems = Problems()
    with problems.collect():
        check_one_thing(spec)        # raises InvalidArgument
    problems.refuse()                # raises if anything was collected
    """

    def __init__(self) -> None:
        self._found: list[InvalidArgument] = []

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Keeps the InvalidArgument that the block raises."""
        try:
            yield
        except InvalidArgument as error:
            self._found.append(error)

    def add(self, *problems: str) -> None:
        """Takes problems as `bad_spec` does; an empty text is none."""
        self._found += [bad_spec(problem) for problem in problems if problem]

    def refuse(self) -> None:
        """Raises InvalidArgument with everything that was collected; returns if that is nothing."""
        if len(self._found) == 1:
            raise self._found[0] from None
        if self._found:
            violations = [one for error in self._found for one in error.violations]
            raise bad_spec("; ".join(error.message for error in self._found), violations)


_KEY = re.compile(r"([\w.\[\]*-]+)(?:: | (?== ))(.*)", re.DOTALL)
"""A key of a specification and what is wrong with it, as messages about specifications begin."""


def parse_duration(value: object) -> float | None:
    """Returns the seconds of a number or of text such as `90s`, `4m` or `1h30m`; None if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", str(value))
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def fill(message: Message, values: Mapping[str, Any], *, where: str, path: str) -> None:
    """Sets the fields of a message from the keys of a TOML table.

    Args:
        message: Changed in place.
        values: The table.
        where: Prefix of error messages, for instance the name of the file.
        path: Dotted key of the table with a trailing dot; empty at the top level.

    Raises:
        InvalidArgument: A key is unknown or a value has the wrong type; the message names the dotted key.
    """
    fields = message.DESCRIPTOR.fields_by_name
    for key, value in values.items():
        if key not in fields:
            raise bad_spec(unknown(f"{where}{path}{key}", "key", key, fields))
        _set(message, fields[key], value, where=where, path=f"{path}{key}")


def _set(message: Message, field: Any, value: Any, *, where: str, path: str) -> None:
    kind = field.message_type
    try:
        if kind is None and field.is_repeated:
            getattr(message, field.name).extend(_list(value))
        elif kind is None:
            _set_scalar(message, field, value)
        elif kind.GetOptions().map_entry:
            nested = _NESTED.get(field.full_name)
            for name, item in (_flattened(_table(value), nested) if nested else _table(value)).items():
                _fill_special(getattr(message, field.name)[name], item, where=where, path=f"{path}.{name}")
        elif field.is_repeated:
            for index, item in enumerate(value):
                _fill_special(getattr(message, field.name).add(), item, where=where, path=f"{path}[{index}]")
        else:
            child = getattr(message, field.name)
            child.SetInParent()
            _fill_special(child, value, where=where, path=path)
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError, json_format.ParseError):
        raise bad_spec(f"{where}{path} = {value!r}: expected {_expected(field)}") from None


def _set_scalar(message: Message, field: Any, value: Any) -> None:
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        value = field.enum_type.values_by_name[prefix + value.upper()].number if isinstance(value, str) else None
    elif isinstance(value, bool) != (field.type == FieldDescriptor.TYPE_BOOL):
        raise TypeError
    setattr(message, field.name, value)


def _fill_special(message: Message, value: Any, *, where: str, path: str) -> None:
    """Fills a message from its table, or from the shorthand that TOML has for its type."""
    if isinstance(message, Duration):
        seconds = parse_duration(value)
        if seconds is None or seconds < 0:
            raise ValueError
        message.FromNanoseconds(round(seconds * 1e9))
    elif isinstance(message, struct_pb2.Struct):
        message.update(_table(value))
    elif isinstance(message, struct_pb2.Value):
        json_format.ParseDict(value, message)
    elif isinstance(message, pb.HyperparameterSpec) and not isinstance(value, Mapping):
        json_format.ParseDict(value, message.value)
    else:
        fill(message, _table(value), where=where, path=f"{path}.")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {str(key): str(item) if hasattr(item, "isoformat") else item for key, item in value.items()}


def _flattened(table: Mapping[str, Any], nested: str) -> dict[str, Any]:
    """Joins the keys of the tables in `table[nested]` with dots, down to values and tables of a HyperparameterSpec.

    TOML reads `options.frame_skip = 4` as a table `options`, unless the key is quoted.
    """
    fields, found = {field.name for field in pb.HyperparameterSpec.DESCRIPTOR.fields}, {}

    def visit(item: Any, path: str) -> None:
        if isinstance(item, Mapping) and not (item and set(item) <= fields):
            for key, inner in item.items():
                visit(inner, f"{path}.{key}")
        else:
            found[path] = item

    for name, item in table.items():
        if name == nested:
            visit(item, name)
        else:
            found[name] = item
    return found


def _expected(field: Any) -> str:
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        names = (value.name.removeprefix(prefix).lower() for value in field.enum_type.values[1:])
        return f"one of {', '.join(names)}"
    if field.message_type is not None:
        return "a duration such as '90s' or '4m'" if field.message_type.name == "Duration" else "a table"
    if field.is_repeated:
        return "a list"
    names_by_type = {
        FieldDescriptor.TYPE_BOOL: "true or false",
        FieldDescriptor.TYPE_STRING: "a string",
        FieldDescriptor.TYPE_DOUBLE: "a number",
    }
    return names_by_type.get(field.type, "a whole number that is not negative")


def check_values(message: Message) -> None:
    """Checks all values of a message at any depth, and the bounds that the contract states.

    Raises:
        InvalidArgument: Numbers are not finite or out of bounds, enum values are unknown, or durations are invalid or
            not positive. The message lists all of them.
    """
    problems, found = Problems(), list(_value_problems(message, ""))
    problems.add(*found)
    known = {str(problem).partition(" ")[0].rstrip(":") for problem in found}
    for violation in violations(message):
        if not any(f"{key}.".startswith(f"{violation.field}.") for key in known):
            problems.add(str(violation))
    problems.refuse()


def _value_problems(message: Message, prefix: str) -> Iterator[str]:
    inner = message.DESCRIPTOR.file.package == "google.protobuf"
    for field, value in message.ListFields():
        # A specification does not spell out the fields of Struct and Value: report the key that holds them.
        path = prefix.removesuffix(".") if inner else f"{prefix}{field.name}"
        if field.is_repeated and isinstance(value, Mapping):
            for name in sorted(value):
                yield from _value_problems(value[name], f"{path}.{printable(name)}.")
            continue
        for item in value if field.is_repeated else [value]:
            yield from _problems_of_one(field, item, path)


def _problems_of_one(field: Any, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Duration):
        yield _duration_problem(value, path)
    elif isinstance(value, Message):
        yield from _value_problems(value, f"{path}.")
    elif field.name == "null_value":
        yield f"{path}: null is no value, and TOML cannot write it: leave the key out"
    elif field.enum_type is not None and value not in field.enum_type.values_by_number:
        yield f"{path} = {value}: expected {_expected(field)}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path} = {value}: expected a finite number"


def _duration_problem(value: Duration, path: str) -> str:
    shown = f"{path} = {value.seconds} s{f' and {value.nanos} ns' if value.nanos else ''}"
    if not (0 <= value.seconds <= _LONGEST_DURATION_SECONDS and 0 <= value.nanos < 10**9):
        return f"{shown}: expected a valid duration of more than 0 and at most {_LONGEST_DURATION_SECONDS} s"
    if not value.ToNanoseconds() and path not in _MAY_BE_ZERO:
        return f"{shown}: expected a duration of more than 0, such as '90s' or '4m'; or leave the key out"
    return ""
