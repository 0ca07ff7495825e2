"""Divides lists into pages and makes their page tokens. Pure.

A page token contains the list it belongs to and where the previous page ended: the rank on a board, the sequence number
of a submission or snapshot, or the number of the next agent. If a board changes between two pages, a candidate may be
missing or appear twice.
"""

import base64
import binascii
import json
from dataclasses import dataclass

from podrace.errors import InvalidArgument
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
    return Page(_position(request) if request.page_token else 0, size)


def token_after(request: Request, position: int) -> str:
    """Returns the token of the page that begins after a position in the list of the request."""
    return base64.urlsafe_b64encode(json.dumps([*_list_of(request), position]).encode()).decode()


def _position(request: Request) -> int:
    try:
        *list_of, position = json.loads(base64.urlsafe_b64decode(request.page_token.encode()))
    except (binascii.Error, ValueError, TypeError):
        list_of, position = [], None
    if list_of != _list_of(request) or not isinstance(position, int) or position < 0:
        raise InvalidArgument(
            f"page_token {request.page_token!r} does not belong to this list; pass next_page_token of the previous"
            " page, or none for the first page"
        )
    return position


def _list_of(request: Request) -> list[object]:
    if isinstance(request, GetLineageRequest):
        return [request.tournament_id, "lineage"]
    if isinstance(request, ListSnapshotsRequest):
        return [request.tournament_id, "snapshots"]
    return [request.tournament_id, request.all_submissions]
