"""Divides the parts of a checkpoint into pages and makes their page tokens. Pure."""

import base64
import binascii
import json

from podrace.checkpoint.v1.delivery_pb2 import ListPartsRequest
from podrace.errors import InvalidArgument

LARGEST_SIZE = 1000


def page_of(request: ListPartsRequest) -> tuple[str, int]:
    """Returns the name after which the requested page begins, and its most parts.

    Raises:
        InvalidArgument: The token does not belong to this list.
    """
    size = min(request.page_size or LARGEST_SIZE, LARGEST_SIZE)
    return (_name_in(request) if request.page_token else ""), size


def token_after(request: ListPartsRequest, name: str) -> str:
    """Returns the token of the page that begins after a part."""
    return base64.urlsafe_b64encode(json.dumps([*_list_of(request), name]).encode()).decode()


def _name_in(request: ListPartsRequest) -> str:
    try:
        *list_of, name = json.loads(base64.urlsafe_b64decode(request.page_token.encode()))
    except (binascii.Error, ValueError, TypeError):
        list_of, name = [], None
    if list_of != _list_of(request) or not isinstance(name, str):
        raise InvalidArgument(
            f"page_token {request.page_token!r} does not belong to this list; pass next_page_token of the previous"
            " page, or none for the first page"
        )
    return name


def _list_of(request: ListPartsRequest) -> list[object]:
    return ["parts", request.manifest_digest, request.all_parts]
