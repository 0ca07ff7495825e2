"""Makes page tokens, which belong to one list with its filter, and reads them. Pure.

token = token_after(["events", tournament_id], 17)
position_in(token, ["events", tournament_id], int)    # 17
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import TypeVar

from podrace.errors import FieldViolation, InvalidArgument

Position = TypeVar("Position", int, str)
LARGEST_POSITION = 1 << 62
"""Larger than every sequence number of a database."""


def token_after(list_of: Sequence[object], position: int | str) -> str:
    """Returns the token of the page that begins after a position.

    Args:
        list_of: What the list is, with everything that selects its entries, as JSON values.
        position: Where the previous page ended.
    """
    return base64.urlsafe_b64encode(json.dumps([*list_of, position]).encode()).decode()


def position_in(token: str, list_of: Sequence[object], kind: type[Position]) -> Position:
    """Returns where the page of a token begins; zero or an empty text for an empty token, which is the first page.

    Raises:
        InvalidArgument: The token does not belong to this list.
    """
    if not token:
        return kind()
    named: list[object]
    try:
        *named, position = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (binascii.Error, ValueError, TypeError):
        named, position = [], None
    too_large = isinstance(position, int) and not 0 <= position <= LARGEST_POSITION
    if named != list(list_of) or type(position) is not kind or too_large:
        problem = "does not belong to this list; pass next_page_token of the previous page, or none for the first page"
        raise InvalidArgument(
            f"page_token {token!r} {problem}", violations=[FieldViolation("page_token", f"= {token!r}: {problem}")]
        )
    return position
