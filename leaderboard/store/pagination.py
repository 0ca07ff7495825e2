"""Divides lists into pages and makes their page tokens. Pure.

A page token contains the list it belongs to and where the previous page ended: the rank on a board, the sequence number
of a submission or snapshot, or the number of the next agent. If a board changes between two pages, a candidate may be
missing or appear twice.
"""

from dataclasses import dataclass

from podrace import page_tokens
from podrace.leaderboard.v1.leaderboard_pb2 import GetLineageRequest, ListCandidatesRequest, ListSnapshotsRequest

DEFAULT_SIZE = 100
LARGEST_SIZE = 1000

Request = ListCandidatesRequest | GetLineageRequest | ListSnapshotsRequest


@dataclass(frozen=True)
class Page:
    """A requested page."""

    after: int
    """Position at which the previous page ended; 0 for the first."""
    size: int
    """Most items on the page."""


def page_of(request: Request) -> Page:
    """Returns the page that a request asks for.

    Raises:
        InvalidArgument: The token does not belong to this list.
    """
    size = min(request.page_size or DEFAULT_SIZE, LARGEST_SIZE)
    return Page(page_tokens.position_in(request.page_token, _list_of(request), int), size)


def token_after(request: Request, position: int) -> str:
    """Returns the token of the page that begins after a position in the list of the request."""
    return page_tokens.token_after(_list_of(request), position)


def _list_of(request: Request) -> list[object]:
    if isinstance(request, GetLineageRequest):
        return [request.tournament_id, "lineage"]
    if isinstance(request, ListSnapshotsRequest):
        return [request.tournament_id, "snapshots"]
    return [request.tournament_id, request.all_submissions]
