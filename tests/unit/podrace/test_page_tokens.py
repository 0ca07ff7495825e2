import base64
from typing import Any

import pytest

from podrace.errors import InvalidArgument
from podrace.field_bounds import violations
from podrace.orchestrator.v1.orchestrator_pb2 import ListEventsRequest
from podrace.page_tokens import LARGEST_POSITION, position_in, token_after

LIST = ["events", "cartpole-abc123"]


@pytest.mark.parametrize("position", [0, 17, LARGEST_POSITION, "policy.safetensors", ""])
def test_a_token_says_where_its_page_begins(position: Any) -> None:
    assert position_in(token_after(LIST, position), LIST, type(position)) == position


def test_no_token_is_the_first_page() -> None:
    assert (position_in("", LIST, int), position_in("", LIST, str)) == (0, "")


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "12",
        token_after(["events", "cartpole-abc124"], 17),
        token_after(["pods", "cartpole-abc123"], 17),
        token_after([*LIST, True], 17),
        token_after(LIST, "17"),
        token_after(LIST, True),
        token_after(LIST, -1),
        token_after(LIST, LARGEST_POSITION + 1),
        base64.urlsafe_b64encode(b"{}").decode(),
        base64.urlsafe_b64encode(b"17").decode(),
        base64.urlsafe_b64encode(b"[]").decode(),
    ],
)
def test_any_other_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument, match="does not belong to this list"):
        position_in(token, LIST, int)


def test_a_token_is_one_that_requests_accept() -> None:
    assert not violations(ListEventsRequest(page_token=token_after(["events", "t" * 100], LARGEST_POSITION)))
