import math
from collections.abc import Callable
from statistics import fmean, variance

import pytest

from leaderboard.ranking.ensemble_members import Scored, choose_members
from leaderboard.ranking.fresh_scores import FreshScore
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MakeCandidate = Callable[..., Candidate]
WAVE = [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]


@pytest.fixture
def scored(make_candidate: MakeCandidate) -> Callable[..., Scored]:
    """A contender with its returns, or with a score only."""

    def make(agent: int, returns: list[float] | float, error: float = 1.0, **others: int) -> Scored:
        candidate = make_candidate(agent, 1.0, **others)
        if isinstance(returns, float):
            return candidate, FreshScore(returns, error, 64)
        deviation = math.sqrt(variance(returns) / len(returns))
        return candidate, FreshScore(fmean(returns), deviation, len(returns), tuple(returns))

    return make


def numbers(ranked: list[Scored], size: int) -> list[int]:
    return [candidate.agent_number for candidate in choose_members(ranked, size)]


def test_an_ensemble_has_at_least_two_members_and_the_best_is_the_first(
    scored: Callable[..., Scored],
) -> None:
    ranked = [scored(4, 10.0), scored(2, 9.5), scored(7, 9.0)]
    assert numbers(ranked, 2) == [4, 2]
    assert numbers(ranked, 9) == [4, 2, 7]
    for size in (0, 1):
        assert numbers(ranked, size) == []
    assert numbers(ranked[:1], 3) == []
    assert numbers([], 3) == []


def test_a_lineage_has_one_member_its_best(scored: Callable[..., Scored]) -> None:
    ranked = [scored(0, 10.0), scored(0, 9.9, candidate_id="newest"), scored(1, 9.8), scored(1, 9.7, candidate_id="x")]
    assert numbers(ranked, 4) == [0, 1]
    assert [one.candidate_id for one in choose_members(ranked, 4)] == [one[0].candidate_id for one in ranked[::2]]
    assert numbers(ranked[:2], 4) == []


def test_a_contender_that_is_significantly_worse_is_no_member(scored: Callable[..., Scored]) -> None:
    # The error of the difference is sqrt(2), and two of these are 2.83.
    assert numbers([scored(0, 10.0), scored(1, 7.2), scored(2, 7.1)], 3) == [0, 1]
    assert numbers([scored(0, 10.0), scored(1, 7.1)], 3) == []


def test_contenders_that_fail_in_other_episodes_are_preferred(scored: Callable[..., Scored]) -> None:
    alike = [value * 0.99 for value in WAVE]
    opposite = [value * 0.9 for value in WAVE[::-1]]
    ranked = [scored(0, WAVE), scored(1, alike), scored(2, opposite)]
    assert numbers(ranked, 2) == [0, 2]
    # The difference to a policy that is a little worse in each episode is certain, so it is no member at all.
    assert numbers(ranked, 3) == [0, 2]


def test_without_returns_the_better_score_comes_first(scored: Callable[..., Scored]) -> None:
    assert numbers([scored(0, 10.0), scored(1, 9.0), scored(2, 8.5)], 2) == [0, 1]
    assert numbers([scored(0, WAVE), scored(1, 3.4), scored(2, [value * 0.9 for value in WAVE[::-1]])], 2) == [0, 2]


def test_agents_that_continue_each_other_have_one_member(scored: Callable[..., Scored]) -> None:
    ranked = [scored(0, 10.0, trial=0), scored(1, 9.9, trial=0), scored(2, 9.8, trial=2)]
    assert [one.agent_number for one in choose_members(ranked, 3)] == [0, 2]
