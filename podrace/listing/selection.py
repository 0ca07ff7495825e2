"""Reads what a request says about a list: filter, order and page. Pure."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from podrace.config import unknown
from podrace.errors import FieldViolation, InvalidArgument
from podrace.listing.filters import Condition, Field, Kind, parse
from podrace.page_tokens import position_in, token_after

Record = TypeVar("Record")
KEY_DIGITS = 16
MOST_ORDERS = 4


class ListRequest(Protocol):
    """A request of a list."""

    filter: str
    order_by: str
    page_token: str


@dataclass(frozen=True)
class ListSelection:
    """The entries that a request asks for, in which order, and where its page begins.

    selection = ListSelection.of(request, FIELDS, ["tournaments"])
    kept = selection.apply(entries, value)

    Attributes:
        conditions: All of them must hold.
        order: Names and whether they are descending; empty: the order of the list itself.
        list_of: What the list is, with filter and order; a page token belongs to it.
        position: Where the previous page ended. With an order: number of entries on the previous pages.
    """

    conditions: tuple[Condition, ...]
    order: tuple[tuple[str, Field, bool], ...]
    list_of: tuple[object, ...]
    position: int

    @classmethod
    def of(cls, request: ListRequest, fields: Mapping[str, Field], list_of: Sequence[object]) -> "ListSelection":
        """Reads a request.

        Raises:
            InvalidArgument: Filter, order or token cannot be used for this list.
        """
        conditions, order = parse(request.filter, fields), parse_order(request.order_by, fields)
        named = [*list_of]
        if conditions or order:
            # Tokens are short, so a token has only the digest of the filter.
            text = json.dumps([request.filter.strip(), request.order_by.strip()]).encode()
            named.append(hashlib.sha256(text).hexdigest()[:KEY_DIGITS])
        return cls(conditions, order, tuple(named), position_in(request.page_token, named, int))

    def apply(self, entries: Sequence[Record], value: Callable[[Record, str], Any]) -> list[Record]:
        """Filters and orders entries in memory.

        Args:
            entries: The entries in the order of the list itself.
            value: Returns the value of a field, by its name.
        """
        kept = [one for one in entries if all(part.matches(value(one, part.name)) for part in self.conditions)]
        for name, _, descending in reversed(self.order):
            kept.sort(key=lambda one, name=name: _before_values(value(one, name)), reverse=descending)  # type: ignore[misc]
        return kept


def _before_values(value: Any) -> tuple[bool, Any]:
    """Returns a key of an order in which absent values come first, as in SQL."""
    return value is not None, value


@dataclass(frozen=True)
class Found(Generic[Record]):
    """The entries of a page, and how to continue."""

    records: list[Record]
    selection: ListSelection
    more: bool
    """Whether there may be entries after these."""

    def token(self, last: Record, position: int) -> str:
        """Returns the token of the page that begins after an entry.

        Args:
            last: The last entry that is on this page.
            position: Its position in the order of the list itself.
        """
        if self.selection.order:
            position = self.selection.position + self.records.index(last) + 1
        return token_after(self.selection.list_of, position)


def parse_order(text: str, fields: Mapping[str, Field]) -> tuple[tuple[str, Field, bool], ...]:
    """Returns names of fields and whether they are descending: `end_time desc, state` (google.aip.dev/132).

    Raises:
        InvalidArgument: It is not an order, or names an unknown field.
    """
    known = [name for name, one in fields.items() if one.kind != Kind.LABELS]
    found = []
    for part in text.split(",") if text.strip() else ():
        name, *direction = part.split() or [""]
        if name not in known:
            raise _bad(unknown("order_by", "field", name, known))
        if direction not in ([], ["asc"], ["desc"]):
            raise _bad(f"order_by: {part.strip()!r}: after the field is asc, desc or nothing")
        found.append((name, fields[name], direction == ["desc"]))
    if len(found) > MOST_ORDERS:
        raise _bad(f"order_by: has {len(found)} fields; at most {MOST_ORDERS} are allowed")
    return tuple(found)


def _bad(problem: str) -> InvalidArgument:
    return InvalidArgument(problem, violations=[FieldViolation("order_by", problem)])
