"""Parses filters of lists, and applies them to values in memory; for SQL see podrace.database.filtering. Pure.

The grammar is a part of that of google.aip.dev/160:

    filter    = [ condition { "AND" condition } ]
    condition = [ "NOT" ] field operator value
    operator  = "=" | "!=" | "<" | "<=" | ">" | ">=" | ":"
    value     = word | string in double quotes, where a backslash makes the next character literal

`labels.KEY` is the value of a label, and `labels:KEY` asks whether there is one. A text that ends with `*` matches all
texts that begin with the rest. Times are in the format of RFC 3339.
"""

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from podrace.config import unknown
from podrace.errors import FieldViolation, InvalidArgument

MOST_CONDITIONS = 16
LABELS = "labels"
TOKEN = re.compile(r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<operator><=|>=|!=|=|<|>|:)|(?P<word>[^\s"<>=!:]+))')
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


class Kind(StrEnum):
    """What the values of a field are; says which operators it has."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    CHOICE = "choice"
    LABELS = "labels"


@dataclass(frozen=True)
class Field:
    """A field that filters and orders may name."""

    kind: Kind
    column: str = ""
    """What selects it from a database: an expression of SQL. That of LABELS is a JSON object, or NULL."""
    choices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """One condition."""

    name: str
    field: Field
    operator: str
    value: str | float
    negated: bool = False
    key: str = ""
    """Key of the label."""

    @property
    def prefix(self) -> str | None:
        """The beginning that texts must have; None if the whole text is compared."""
        text = self.value if self.field.kind in (Kind.TEXT, Kind.LABELS) else None
        return text[:-1] if isinstance(text, str) and text.endswith("*") else None

    def matches(self, value: Any) -> bool:
        """Whether a value of the field, or a mapping of labels, satisfies the condition."""
        return self._compared(value) != self.negated

    def _compared(self, value: Any) -> bool:
        if self.field.kind == Kind.LABELS:
            if self.operator == ":":
                return self.key in value
            value = value.get(self.key)
        if self.prefix is not None:
            return (value is not None and value.startswith(self.prefix)) == (self.operator == "=")
        if value is None:
            return self.operator == "!="
        return COMPARISONS[self.operator](value, self.value)


def parse(text: str, fields: Mapping[str, Field]) -> tuple[Condition, ...]:
    """Returns the conditions of a filter; none for an empty one.

    Raises:
        InvalidArgument: It is not a filter, names an unknown field, or a value does not suit its field.
    """
    tokens = list(_tokens(text))
    found = []
    while tokens:
        found.append(_condition(tokens, fields))
        if tokens and (tokens.pop(0) != ("word", "AND") or not tokens):
            raise _bad("conditions are connected by AND")
    if len(found) > MOST_CONDITIONS:
        raise _bad(f"has {len(found)} conditions; at most {MOST_CONDITIONS} are allowed")
    return tuple(found)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _bad(f"cannot be read from character {position + 1} on: {text[position : position + 20]!r}")
        token = match[match.lastgroup]
        yield match.lastgroup, re.sub(r"\\(.)", r"\1", token[1:-1]) if match.lastgroup == "string" else token
        position = match.end()


def _condition(tokens: list[tuple[str, str]], fields: Mapping[str, Field]) -> Condition:
    negated = tokens[0] == ("word", "NOT")
    taken, tokens[: 3 + negated] = tokens[negated : 3 + negated], []
    if [kind for kind, _ in taken[:2]] != ["word", "operator"] or len(taken) < 3 or taken[2][0] == "operator":
        raise _bad(f"expected FIELD OPERATOR VALUE, not {' '.join(token for _, token in taken)!r}")
    (_, name), (_, operator), (_, value) = taken
    if name == LABELS and operator == ":" and LABELS in fields:
        return Condition(name, fields[LABELS], operator, "", negated, _key(value))
    if name.startswith(f"{LABELS}.") and LABELS in fields:
        if operator not in ("=", "!="):
            raise _bad(f"{name}: has no operator {operator!r}; it has = and !=")
        return Condition(LABELS, fields[LABELS], operator, value, negated, _key(name.removeprefix(f"{LABELS}.")))
    found = fields.get(name)
    if found is None or found.kind == Kind.LABELS:
        known = [f"{LABELS}.KEY" if one == LABELS else one for one in fields]
        raise InvalidArgument(problem := unknown("filter", "field", name, known), violations=[_violation(problem)])
    allowed = ("=", "!=") if found.kind in (Kind.TEXT, Kind.CHOICE) else tuple(COMPARISONS)
    if operator not in allowed:
        raise _bad(f"{name}: has no operator {operator!r}; it has {' '.join(allowed)}")
    return Condition(name, found, operator, _value(name, found, value), negated)


def _value(name: str, described: Field, text: str) -> str | float:
    if described.kind == Kind.NUMBER:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not abs(number) < float("inf"):
            raise _bad(f"{name}: {text!r} is not a finite number")
        return number
    if described.kind == Kind.TIME:
        try:
            time = datetime.datetime.fromisoformat(text)
        except ValueError:
            raise _bad(f"{name}: {text!r} is not a time such as 2026-11-23T10:00:00Z in double quotes") from None
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
    if described.kind == Kind.CHOICE:
        if text not in described.choices:
            problem = unknown(f"filter: {name}", "value", text, list(described.choices))
            raise InvalidArgument(problem, violations=[_violation(problem)])
        return described.choices[text]
    return text


def _key(text: str) -> str:
    if not re.fullmatch(r"[\w./-]{1,317}", text, re.ASCII):
        raise _bad(f"labels: {text!r} is not the key of a label")
    return text


def _violation(problem: str) -> FieldViolation:
    return FieldViolation("filter", problem)


def _bad(problem: str) -> InvalidArgument:
    return InvalidArgument(f"filter: {problem}", violations=[_violation(problem)])
