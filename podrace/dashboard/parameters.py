"""Reads the parameters of requests, all of which are bounded."""

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from podrace.errors import InvalidArgument
from podrace.field_bounds import is_id

LARGEST_BODY_BYTES = 512 * 1024
LONGEST_WORDS = 200

Choice = TypeVar("Choice", bound=StrEnum)
Query = Mapping[str, str]


def identity(query: Query, name: str, *, required: bool = False) -> str:
    """Returns an id; empty: not given.

    Raises:
        InvalidArgument: It is no id, or missing although required.
    """
    value = query.get(name, "")
    if (value and not is_id(value)) or (required and not value):
        raise InvalidArgument(f"{name} = {value[:80]!r}: expected the id of an agent, a pod or a tournament")
    return value


def words(query: Query, name: str) -> str:
    """Returns a short text; empty: not given.

    Raises:
        InvalidArgument: It is too long.
    """
    value = query.get(name, "")
    if len(value) > LONGEST_WORDS:
        raise InvalidArgument(f"{name}: {len(value)} characters; expected at most {LONGEST_WORDS}")
    return value


def whole(query: Query, name: str, *, default: int, low: int, high: int) -> int:
    """Returns a whole number.

    Raises:
        InvalidArgument: It is none, or outside of the range.
    """
    given = query.get(name, "")
    if not given:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 20 or not low <= int(given) <= high:
        raise InvalidArgument(f"{name} = {given[:80]!r}: expected a whole number from {low} to {high}")
    return int(given)


def real(query: Query, name: str) -> float | None:
    """Returns a finite number; None: not given.

    Raises:
        InvalidArgument: It is none.
    """
    given = query.get(name, "")
    if not given:
        return None
    try:
        value = float(given[:40])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidArgument(f"{name} = {given[:80]!r}: expected a number")
    return value


def choice(query: Query, name: str, default: Choice) -> Choice:
    """Returns one of the values of an enum.

    Raises:
        InvalidArgument: It is another text.
    """
    kind = type(default)
    given = query.get(name, default.value)
    if given not in list(kind):
        raise InvalidArgument(f"{name} = {given[:80]!r}: expected one of {', '.join(kind)}")
    return kind(given)


def body_of(data: bytes) -> dict[str, Any]:
    """Returns the JSON object of a request.

    Raises:
        InvalidArgument: The bytes are no JSON object.
    """
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise InvalidArgument("the request has no valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidArgument("the request has no JSON object")
    return value


def text_in(body: Mapping[str, Any], name: str, *, longest: int) -> str:
    """Returns a text of a JSON object; empty: not given.

    Raises:
        InvalidArgument: It is no text, or too long.
    """
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > longest:
        raise InvalidArgument(f"{name}: expected a text of at most {longest} characters")
    return value
