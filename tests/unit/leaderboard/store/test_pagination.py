import base64
import json

import pytest

from leaderboard.store.list_fields import AGENT_FIELDS, CANDIDATE_FIELDS, SNAPSHOT_FIELDS, field_value
from leaderboard.store.pagination import page_of
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    Candidate,
    GetLineageRequest,
    ListCandidatesRequest,
    ListSnapshotsRequest,
    Snapshot,
)
from podrace.page_tokens import token_after


def test_a_token_continues_after_the_previous_page() -> None:
    request = ListCandidatesRequest(tournament_id="t", page_size=7)
    page = page_of(request)
    assert (page.after, page.size, page.selects) == (0, 7, False)
    request.page_token = page.token([1, 42, 43], 2, lambda entry: entry)
    assert page_of(request).after == 42
    assert page.token([1, 42], 2, lambda entry: entry) == ""


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


@pytest.mark.parametrize(
    "other",
    [
        ListCandidatesRequest(tournament_id="u"),
        ListCandidatesRequest(tournament_id="t", all_submissions=True),
        ListCandidatesRequest(tournament_id="t", filter="score > 1"),
        ListCandidatesRequest(tournament_id="t", order_by="score"),
        GetLineageRequest(tournament_id="t"),
        ListSnapshotsRequest(tournament_id="t"),
    ],
)
def test_the_token_of_another_list_filter_or_order_is_refused(other: ListCandidatesRequest) -> None:
    other.page_token = token_after(["t", False], 3)
    assert page_of(ListCandidatesRequest(tournament_id="t", page_token=other.page_token)).after == 3
    with pytest.raises(InvalidArgument, match="does not belong to this list"):
        page_of(other)


def test_every_field_of_a_list_is_one_of_its_entries_and_an_absent_value_is_none() -> None:
    for fields, entry in ((CANDIDATE_FIELDS, Candidate()), (AGENT_FIELDS, Agent()), (SNAPSHOT_FIELDS, Snapshot())):
        values = {name: field_value(entry, name) for name in fields}
        assert {name for name, value in values.items() if value is None} == values.keys() & {
            "submit_time", "create_time", "estimate", "trial", "seat", "rung",
        }  # fmt: skip


def test_selected_entries_are_paged_after_the_last_one_or_by_their_number() -> None:
    scores = [3.0, 1.0, 2.0, 5.0, 4.0]
    entries = [Candidate(rank=rank, score=score) for rank, score in enumerate(scores, start=1)]
    for order, expected in {"": [3.0, 2.0, 5.0, 4.0], "score desc": [5.0, 4.0, 3.0, 2.0]}.items():
        request = ListCandidatesRequest(filter="score >= 2", order_by=order, page_size=3)
        page = page_of(request)
        found = page.cut(entries, lambda one: one, lambda one: one.rank)
        request.page_token = page.token(found, 3, lambda one: one.rank)
        rest = page_of(request).cut(entries, lambda one: one, lambda one: one.rank)
        assert [one.score for one in (*found[:3], *rest)] == expected
