import itertools
from collections.abc import Callable

import pytest

from leaderboard.evolution.comparison import error_of_difference, leads, ranked, share_of
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MakeCandidate = Callable[..., Candidate]


def test_a_lead_must_exceed_the_error_of_the_difference(make_candidate: MakeCandidate) -> None:
    one, other = make_candidate(0, 15.0, 3.0), make_candidate(1, 10.0, 4.0)
    assert error_of_difference(one, other) == 5.0
    assert not leads(one, other)
    assert leads(make_candidate(0, 15.001, 3.0), other)
    assert not leads(other, one)


def test_equal_scores_are_no_lead_even_without_errors(make_candidate: MakeCandidate) -> None:
    assert not leads(make_candidate(0, 7.0), make_candidate(1, 7.0))


def test_the_order_is_total_and_does_not_depend_on_the_order_of_the_list(make_candidate: MakeCandidate) -> None:
    candidates = [
        make_candidate(0, 5.0, 1.0),
        make_candidate(1, 5.0, 0.5),
        make_candidate(2, 5.0, 1.0),
        make_candidate(3, 6.0, 9.0),
    ]
    for listed in itertools.permutations(candidates):
        assert [candidate.agent_number for candidate in ranked(listed)] == [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (10, 0.2, 2),
        (8, 0.2, 2),
        (8, 0.125, 1),
        (100, 0.07, 7),
        (8, 0.3, 3),
        (3, 0.2, 1),
        (3, 0.9, 1),
        (1, 0.5, 0),
        (9, 0.0, 0),
    ],
)
def test_shares_are_rounded_up_and_the_two_ends_never_overlap(count: int, share: float, expected: int) -> None:
    assert share_of(count, share) == expected
