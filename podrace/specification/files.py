"""Reads tournament specifications from TOML files and writes them as TOML."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from podrace import config
from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING
from podrace.limits.user_environment import user_environment
from podrace.plugins import declarations
from podrace.printable import quoted
from podrace.specification import resolve
from podrace.tournament.v1.tournament_pb2 import HyperparameterSpec, TournamentSpec


def load(path: Path, overrides: Sequence[str] = ()) -> TournamentSpec:
    """Reads a specification from a TOML file, applies overrides and resolves it.

    Args:
        path: TOML file.
        overrides: Keys to override, as `a.b=c`.

    Raises:
        InvalidArgument: The file cannot be read, or the file or an override is invalid.
    """
    values = config.read_toml(path)
    for override in overrides:
        config.assign(values, *config.split_override(override))
    return from_values(values, source=str(path))


def from_values(values: Mapping[str, Any], *, source: str) -> TournamentSpec:
    """Reads the nested values of a specification, adds what user-defined algorithms declare, and resolves it.

    Args:
        values: What a TOML file would have.
        source: Where they come from, for messages.

    Raises:
        InvalidArgument: A value is wrong.
    """
    parsed = resolve.parse(values, source=source)
    try:
        declarations.fill_declarations(parsed, user_environment(os.environ, EVERYTHING))
        return resolve.resolve(parsed)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error.message}", reason=error.reason, violations=error.violations) from None


# --- message to values -------------------------------------------------------------------------------------------


def to_values(message: Message) -> dict[str, Any]:
    """Returns the nested values that `resolve.parse` reads as this message."""
    return {field.name: _field_value(field, value) for field, value in message.ListFields()}


def _field_value(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        return field.enum_type.values_by_number[value].name.removeprefix(prefix).lower()
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        return {name: _message_value(value[name]) for name in sorted(value)}
    if field.is_repeated:
        return [_message_value(item) for item in value]
    return _message_value(value)


def _message_value(message: Message) -> Any:
    if isinstance(message, Duration):
        return f"{message.ToNanoseconds() / 1e9:.9f}".rstrip("0").rstrip(".") + "s"
    if isinstance(message, struct_pb2.Struct | struct_pb2.Value):
        return whole(json_format.MessageToDict(message))
    values = to_values(message)
    # Shorthand for a hyperparameter that is not searched.
    return values["value"] if isinstance(message, HyperparameterSpec) and set(values) == {"value"} else values


def whole(value: Any) -> Any:
    """Converts whole numbers back to int, because protobuf's Struct stores all numbers as doubles."""
    if isinstance(value, Mapping):
        return {key: whole(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- values to TOML ----------------------------------------------------------------------------------------------


def to_toml(message: TournamentSpec) -> str:
    """Returns the specification as TOML text; reading it again gives the same message."""
    return "\n".join(_table_lines(to_values(message), path="")).lstrip("\n")


def _table_lines(values: Mapping[str, Any], path: str) -> list[str]:
    """Returns the lines of a table: first its plain values, then its tables. A hyperparameter takes one line."""
    inline = path.endswith(".hyperparameters") or path == "environment.search"
    plain = {key: value for key, value in values.items() if inline or not isinstance(value, Mapping)}
    lines = ["", f"[{path}]"] if path and (plain or not values) else []
    lines += [f"{toml_key(key)} = {toml_literal(value)}" for key, value in plain.items()]
    for key, value in values.items():
        if key not in plain:
            lines += _table_lines(value, f"{path}.{toml_key(key)}" if path else toml_key(key))
    return lines


def toml_literal(value: Any) -> str:
    """Returns a value as TOML; a mapping becomes an inline table."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_literal(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(toml_literal(item) for item in value)}]"
    if isinstance(value, str):
        return quoted(value)
    # TOML writes booleans as JSON does, and floats as Python does (inf, nan).
    return repr(value) if isinstance(value, float) else json.dumps(value)


def toml_key(key: str) -> str:
    """Returns one part of a key as TOML, in quotes if it needs them."""
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else quoted(key)
