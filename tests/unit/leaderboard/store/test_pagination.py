import base64
import json

import pytest

from leaderboard.store.pagination import Page, page_of, token_after
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import ListCandidatesRequest


def test_a_token_continues_after_the_previous_page() -> None:
    request = ListCandidatesRequest(tournament_id="t", page_size=7)
    assert page_of(request) == Page(after=0, size=7)
    request.page_token = token_after(request, 42)
    assert page_of(request) == Page(after=42, size=7)


def test_pages_have_a_hundred_by_default_and_a_thousand_at_most() -> None:
    assert page_of(ListCandidatesRequest()).size == 100
    assert page_of(ListCandidatesRequest(page_size=4_000_000)).size == 1000


@pytest.mark.parametrize(
    "nonsense",
    ["x", "é", "////", "bnVsbA==", "WzFd", base64.urlsafe_b64encode(json.dumps(["t", False, -1]).encode()).decode()],
)
def test_a_malformed_token_is_refused(nonsense: str) -> None:
    with pytest.raises(InvalidArgument, match="does not belong to this list"):
        page_of(ListCandidatesRequest(tournament_id="t", page_token=nonsense))


def test_the_token_of_another_list_is_refused() -> None:
    request = ListCandidatesRequest(tournament_id="t")
    token = token_after(request, 3)
    for other in (
        ListCandidatesRequest(tournament_id="u", page_token=token),
        ListCandidatesRequest(tournament_id="t", all_submissions=True, page_token=token),
    ):
        with pytest.raises(InvalidArgument, match="does not belong to this list"):
            page_of(other)
