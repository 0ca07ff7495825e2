"""Candidates of one epoch are compared episode by episode if episodes correlate, all others by their estimates."""

import math

import pytest

from leaderboard.ranking.paired import common_episodes, difference
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def candidate(returns: list[float], sequence: int = 1, correlation: float = 0.5, **changes) -> Candidate:
    values = {"score": 7.0, "standard_error": 3.0, "estimate": 5.0, "estimate_error": 0.4, "evaluation_epoch": 2}
    return Candidate(
        episode_returns=returns, sequence=sequence, episode_correlation=correlation, **{**values, **changes}
    )


ONE, OTHER = [3.0, 5.0, 7.0, 9.0], [2.0, 4.0, 6.0, 6.0]


def test_common_episodes_are_compared_one_by_one():
    # Differences 1, 1, 1, 3: mean 1.5, deviation 1, error 1 / sqrt(4).
    found = difference(candidate(ONE), candidate(OTHER, 2))
    assert (found.value, found.error, found.paired) == (1.5, 0.5, True)


def test_only_the_common_prefix_counts():
    assert common_episodes(candidate([*ONE, 1000.0]), candidate(OTHER)) == 4
    assert difference(candidate([*ONE, 1000.0]), candidate(OTHER)).value == 1.5


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation_epoch": 3},
        {"evaluation_epoch": None},
        {"correlation": 0.2},
        {"returns": OTHER[:3]},
        {"returns": []},
        {"evaluator_fault": "the plugin failed"},
    ],
)
def test_otherwise_estimates_are_compared_with_independent_errors(changes):
    values = {"returns": OTHER, "sequence": 2, "estimate": 4.0, "estimate_error": 0.3, **changes}
    found = difference(candidate(ONE), candidate(**values))
    assert (found.value, found.error, found.paired) == (1.0, pytest.approx(0.5), False)


def test_the_correlation_known_to_the_later_candidate_decides():
    assert difference(candidate(ONE, 1, 0.0), candidate(OTHER, 2, 0.5)).paired
    assert not difference(candidate(ONE, 1, 0.5), candidate(OTHER, 2, 0.0)).paired


def test_candidates_of_earlier_versions_are_compared_by_their_scores():
    one, other = Candidate(score=3.0, standard_error=0.3), Candidate(score=1.0, standard_error=0.4)
    found = difference(one, other)
    assert (found.value, found.error, found.paired) == (2.0, math.hypot(0.3, 0.4), False)
