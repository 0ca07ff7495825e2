"""Parses the options of a simulator: names and types are checked before anything is built."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import date
from typing import Any, TypeVar

from podrace.errors import InvalidArgument

OptionsClass = TypeVar("OptionsClass")


def closest(name: str, names: Collection[str]) -> str:
    """Returns a hint for an error about an unknown name: '; did you mean ...?', or '' if no name is similar."""
    matches = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_names(owner: str, options: Mapping[str, object], allowed: Collection[str]) -> None:
    """Refuses unknown options.

    Args:
        owner: Id of the simulator, as the user wrote it.
        options: The user's options.
        allowed: Every name that `owner` accepts.

    Raises:
        InvalidArgument: A name is unknown; the message lists the allowed names.
    """
    for name in options:
        if name not in allowed:
            hint = closest(name, allowed)
            raise InvalidArgument(f"{owner}: unknown option {name!r}{hint} (allowed: {', '.join(sorted(allowed))})")


def parse_options(owner: str, options: Mapping[str, object], options_class: type[OptionsClass]) -> OptionsClass:
    """Builds a frozen dataclass of options from a user's options.

    Args:
        owner: Id of the simulator, as the user wrote it.
        options: Names and values. An int is accepted as float, a list as a tuple, a date as its ISO text.
        options_class: A dataclass whose fields are annotated str, int, float or tuple[str, ...].

    Raises:
        InvalidArgument: A name is unknown or a value has the wrong type.
    """
    kinds: dict[str, Any] = {field.name: field.type for field in fields(options_class)}  # type: ignore[arg-type]
    check_names(owner, options, kinds)
    return options_class(**{name: _convert(owner, name, value, kinds[name]) for name, value in options.items()})


def _convert(owner: str, name: str, value: object, kind: Any) -> object:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind is str and isinstance(value, date):
        return value.isoformat()
    if kind == tuple[str, ...] and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    expected = "a list of texts" if kind == tuple[str, ...] else kind.__name__
    raise InvalidArgument(f"{owner}: option {name!r} must be {expected}, not {value!r}")
