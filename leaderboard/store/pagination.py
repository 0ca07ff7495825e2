"""Owns how lists are cut into pages. Pure.

A page token says which list it belongs to and where the page before ended: after which rank of a board, after which
sequence number of the submissions or the snapshots, before which number of an agent. A board may change between two
pages; then a candidate may be missed or come twice.
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
    """A page that is asked for."""

    after: int
    """Where the page before ended; 0 for the first."""
    size: int
    """How many items at most."""


def asked_for(request: Request) -> Page:
    """The page that a request means.

    Raises:
        InvalidArgument: The token is not one of this list.
    """
    size = min(request.page_size or DEFAULT_SIZE, LARGEST_SIZE)
    return Page(_position(request) if request.page_token else 0, size)


def token_after(request: Request, position: int) -> str:
    """The token of the page that begins after a position of the list that the request is about."""
    return base64.urlsafe_b64encode(json.dumps([*_list_of(request), position]).encode()).decode()


def _position(request: Request) -> int:
    try:
        *list_of, position = json.loads(base64.urlsafe_b64decode(request.page_token.encode()))
    except (binascii.Error, ValueError, TypeError):
        list_of, position = [], None
    if list_of != _list_of(request) or not isinstance(position, int) or position < 0:
        raise InvalidArgument(
            f"page_token {request.page_token!r} is not one of this list; pass next_page_token of its previous page,"
            " or none for the first"
        )
    return position


def _list_of(request: Request) -> list[object]:
    if isinstance(request, GetLineageRequest):
        return [request.tournament_id, "lineage"]
    if isinstance(request, ListSnapshotsRequest):
        return [request.tournament_id, "snapshots"]
    return [request.tournament_id, request.all_submissions]
