"""Reads which hyperparameters a user-defined algorithm declares, with their ranges, from the fields of a dataclass.

    @dataclass(frozen=True)
    class MySettings(RolloutSettings):
        baseline: float = hyperparameter(0.5, "weight of the baseline", low=0.0, high=1.0)

    hyperparameters = declared_by(MySettings, catalog.PPO.hyperparameters)

A field without `hyperparameter` must have the name of an inherited hyperparameter, whose range then applies to its new
default. The module does not import torch.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass, replace
from typing import Any

from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument
from podrace.specification.catalog import Hyperparameter, Search, Value

_KEY = "podrace.hyperparameter"
_SCALES = ("linear", "log", "reverse_log")


def hyperparameter(
    default: Value,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    scale: str = "linear",
    search: tuple[float, float] | tuple[float, float, float] | None = None,
    wide: tuple[float, float] | tuple[float, float, float] | None = None,
    structural: bool = False,
) -> Any:
    """Declares a field of a settings dataclass as a hyperparameter.

    Args:
        default: Value if a specification does not set it; its type is the type of all values: float, int, bool, str or
            tuple[int, ...].
        help: One line.
        low: Smallest allowed value, inclusive; numbers need it.
        high: Largest allowed value, inclusive; numbers need it.
        choices: Allowed values of a text; without choices every text is allowed.
        scale: Scale of the search: `linear`, `log` or `reverse_log`.
        search: What is searched if a specification does not mention it: (low, high), or (low, high, probability of 0),
            see `zero_probability` in specifications. None: it is fixed at the default.
        wide: What is searched instead with `search = "wide"`.
        structural: Whether it determines the shape of networks or of the saved state, so that a child keeps it.

    Returns:
        A field of a dataclass. Wrong declarations are reported by `declared_by`, which knows the class.
    """
    declared = Hyperparameter(
        default,
        help,
        low,
        high,
        choices,
        scale,
        Search(*search) if search else None,
        Search(*wide) if wide else None,
        structural,
    )
    return field(default=default, metadata={_KEY: declared})


def declared_by(settings: type[Any], inherited: Mapping[str, Hyperparameter]) -> dict[str, Hyperparameter]:
    """Returns the hyperparameters that a settings dataclass declares, by name.

    Args:
        settings: The dataclass.
        inherited: Declarations of fields that state only a default.

    Raises:
        InvalidArgument: The class or one of its fields is wrong; the message has the key, the class and the line.
    """
    if not is_dataclass(settings):
        raise _error(settings, "", "is not a dataclass; decorate it with @dataclass(frozen=True)")
    found = {}
    for each in fields(settings):
        declared = each.metadata.get(_KEY)
        if each.default is MISSING:
            raise _error(settings, each.name, "has no default")
        if declared is None:
            if each.name not in inherited:
                raise _error(settings, each.name, "has no range: declare it with hyperparameter(default, help, ...)")
            default: Any = each.default
            declared = replace(inherited[each.name], default=default)
        if problem := declaration_problem(declared):
            raise _error(settings, each.name, problem)
        found[each.name] = declared
    return found


def declaration_problem(declared: Hyperparameter) -> str:
    """Returns what is wrong with the declaration of one hyperparameter; empty if nothing is."""
    default, low, high = declared.default, declared.low, declared.high
    if isinstance(default, bool):
        return ""
    if isinstance(default, str):
        wrong = declared.choices and default not in declared.choices
        return f"= {default!r}: the default is not among {', '.join(declared.choices)}" if wrong else ""
    numbers = default if isinstance(default, tuple) else (default,)
    if not all(isinstance(number, int | float) for number in numbers):
        return f"= {default!r}: expected a number, a text, true or false, or a tuple of whole numbers"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low <= high):
        return "has no range: give low and high"
    for number in numbers:
        if not low <= number <= high:
            return f"= {number:g}: the default is outside its own range {low:g} to {high:g}"
    if declared.scale not in _SCALES:
        return f": scale {declared.scale!r}: expected one of {', '.join(_SCALES)}"
    return next(filter(None, (_search_problem(declared, search) for search in (declared.search, declared.wide))), "")


def _search_problem(declared: Hyperparameter, search: Search | None) -> str:
    if search is None:
        return ""
    shown = f": search {search.low:g} to {search.high:g}"
    if isinstance(declared.default, tuple):
        return f"{shown}: a list has no search range"
    if declared.low is None or declared.high is None or not declared.low <= search.low < search.high <= declared.high:
        return f"{shown}: expected low < high within its range"
    if declared.scale == "log" and search.low <= 0:
        return f"{shown}: a logarithmic scale needs a positive range"
    if declared.scale == "reverse_log" and search.high >= 1:
        return f"{shown}: the scale reverse_log needs a range below 1"
    return ""


def _error(settings: type[Any], name: str, problem: str) -> InvalidArgument:
    key = f"hyperparameter {name} " if name else ""
    return InvalidArgument(f"{key}{problem} ({place_of(settings, name)})", reason=UNUSABLE_ALGORITHM)


def place_of(described: Any, name: str = "") -> str:
    """Returns where a class, a function or a field of a class is defined: `mine.MySettings, mine.py:12`."""
    label = f"{described.__module__}.{described.__qualname__}"
    try:
        lines, first = inspect.getsourcelines(described)
        file = (inspect.getsourcefile(inspect.unwrap(described)) or "").rpartition("/")[2]
    except (OSError, TypeError):
        return label
    stated = (
        number for number, line in enumerate(lines) if name and line.strip().startswith((f"{name}:", f"{name} ="))
    )
    return f"{label}, {file}:{max(first, 1) + next(stated, 0)}"
