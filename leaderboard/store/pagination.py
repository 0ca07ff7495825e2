"""Divides lists into pages and makes their page tokens. Pure.

A page token contains the list it belongs to, with its filter and order, and where the previous page ended: the rank on
a board, the sequence number of a submission or snapshot, the number of an agent, or with an order the number of entries
before. If a list changes between two pages, an entry may be missing or appear twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from leaderboard.store.list_fields import AGENT_FIELDS, CANDIDATE_FIELDS, SNAPSHOT_FIELDS, field_value
from podrace import page_tokens
from podrace.leaderboard.v1.leaderboard_pb2 import GetLineageRequest, ListCandidatesRequest, ListSnapshotsRequest
from podrace.listing.filters import Field
from podrace.listing.selection import ListSelection

DEFAULT_SIZE = 100
LARGEST_SIZE = 1000

Request = ListCandidatesRequest | GetLineageRequest | ListSnapshotsRequest
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Page:
    """A requested page.

    page = page_of(request)
    found = page.cut(entries, message, position) if page.selects else the entries after page.after, one more than size
    token = page.token(found, kept, position)
    """

    selection: ListSelection
    size: int
    """Most items on the page."""

    @property
    def selects(self) -> bool:
        """Whether the request has a filter or an order; otherwise the page is a section of the list itself."""
        return bool(self.selection.conditions or self.selection.order)

    @property
    def after(self) -> int:
        """Where the previous page ended; 0 for the first."""
        return self.selection.position

    def cut(
        self, entries: Iterable[Entry], message: Callable[[Entry], Message], position: Callable[[Entry], int]
    ) -> list[Entry]:
        """Returns the entries of the page, and one more if there are more.

        Args:
            entries: The whole list in its own order.
            message: Returns the message of an entry, which has the fields of the list.
            position: Returns the position of an entry in the list itself.
        """
        found = self.selection.apply(list(entries), lambda one, name: field_value(message(one), name))
        if self.selection.order:
            return found[self.after : self.after + self.size + 1]
        return [one for one in found if position(one) > self.after][: self.size + 1]

    def token(self, found: Sequence[Entry], kept: int, position: Callable[[Entry], int]) -> str:
        """Returns the token of the next page; empty on the last page.

        Args:
            found: The entries of the page, and one more if there are more.
            kept: How many of them are on the page.
            position: Returns the position of an entry in the list itself.
        """
        if kept >= len(found):
            return ""
        after = self.after + kept if self.selection.order else position(found[kept - 1])
        return page_tokens.token_after(self.selection.list_of, after)


def page_of(request: Request) -> Page:
    """Returns the page that a request asks for.

    Raises:
        InvalidArgument: Filter, order or token cannot be used for this list.
    """
    fields, list_of = _list_of(request)
    size = min(request.page_size or DEFAULT_SIZE, LARGEST_SIZE)
    return Page(ListSelection.of(request, fields, list_of), size)


def _list_of(request: Request) -> tuple[Mapping[str, Field], list[object]]:
    if isinstance(request, GetLineageRequest):
        return AGENT_FIELDS, [request.tournament_id, "lineage"]
    if isinstance(request, ListSnapshotsRequest):
        return SNAPSHOT_FIELDS, [request.tournament_id, "snapshots"]
    return CANDIDATE_FIELDS, [request.tournament_id, request.all_submissions]
