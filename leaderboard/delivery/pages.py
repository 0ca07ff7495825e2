"""Divides the parts of a checkpoint into pages and makes their page tokens. Pure."""

from podrace import page_tokens
from podrace.checkpoint.v1.delivery_pb2 import ListPartsRequest

LARGEST_SIZE = 1000


def page_of(request: ListPartsRequest) -> tuple[str, int]:
    """Returns the name after which the requested page begins, and its most parts.

    Raises:
        InvalidArgument: The token does not belong to this list.
    """
    size = min(request.page_size or LARGEST_SIZE, LARGEST_SIZE)
    return page_tokens.position_in(request.page_token, _list_of(request), str), size


def token_after(request: ListPartsRequest, name: str) -> str:
    """Returns the token of the page that begins after a part."""
    return page_tokens.token_after(_list_of(request), name)


def _list_of(request: ListPartsRequest) -> list[object]:
    return ["parts", request.manifest_digest, request.all_parts]
