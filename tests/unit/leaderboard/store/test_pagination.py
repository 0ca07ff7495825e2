import base64
import json

import pytest

from leaderboard.store.pagination import Page, asked_for, token_after
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import ListCandidatesRequest


def test_a_token_leads_to_where_the_page_before_ended() -> None:
    request = ListCandidatesRequest(tournament_id="t", page_size=7)
    assert asked_for(request) == Page(after=0, size=7)
    request.page_token = token_after(request, 42)
    assert asked_for(request) == Page(after=42, size=7)


def test_pages_have_a_hundred_by_default_and_a_thousand_at_most() -> None:
    assert asked_for(ListCandidatesRequest()).size == 100
    assert asked_for(ListCandidatesRequest(page_size=4_000_000)).size == 1000


@pytest.mark.parametrize(
    "nonsense",
    ["x", "é", "////", "bnVsbA==", "WzFd", base64.urlsafe_b64encode(json.dumps(["t", False, -1]).encode()).decode()],
)
def test_nonsense_is_no_token(nonsense: str) -> None:
    with pytest.raises(InvalidArgument, match="is not one of this list"):
        asked_for(ListCandidatesRequest(tournament_id="t", page_token=nonsense))


def test_the_token_of_another_list_is_refused() -> None:
    request = ListCandidatesRequest(tournament_id="t")
    token = token_after(request, 3)
    for other in (
        ListCandidatesRequest(tournament_id="u", page_token=token),
        ListCandidatesRequest(tournament_id="t", all_submissions=True, page_token=token),
    ):
        with pytest.raises(InvalidArgument, match="is not one of this list"):
            asked_for(other)
