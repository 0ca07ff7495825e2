"""Chooses the members of an ensemble among evaluated contenders. Pure.

An ensemble of similar policies acts like each of them; the error of a mean of k estimators with variance v and pairwise
correlation r is r v + (1 - r) v / k (Breiman, "Random Forests", Machine Learning 45, 2001, section 2.4.2). Members are
therefore the best contender and others that are about as good and different:

1.  At most one contender of each trial, the best of it.
2.  None that is worse than the best contender by more than two standard errors of the difference.
3.  Of these, repeatedly the one whose returns correlate least, on average, with those of the members so far. Without
    returns of the same episodes the correlation is unknown, and the better score comes first.
"""

from collections.abc import Sequence
from statistics import fmean

from leaderboard.ranking.board import trial_key
from leaderboard.ranking.fresh_scores import FreshScore, lead
from podrace.comparison.paired import correlation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MOST_ERRORS = 2.0
"""A member may be worse than the best contender by this many standard errors of the difference."""

Scored = tuple[Candidate, FreshScore]


def choose_members(ranked: Sequence[Scored], size: int) -> list[Candidate]:
    """Returns the members of the best ensemble, the best contender first; empty if there are fewer than two.

    Args:
        ranked: Contenders with their scores on the same episodes, the best first.
        size: Largest number of members.
    """
    by_trial: dict[int, Scored] = {}
    for candidate, score in ranked:
        by_trial.setdefault(trial_key(candidate), (candidate, score))
    if size < 2 or len(by_trial) < 2:
        return []
    best, *others = by_trial.values()
    members = [best]
    left = [one for one in others if _is_close(best[1], one[1])]
    while left and len(members) < size:
        chosen = min(range(len(left)), key=lambda i: (_similarity(left[i], members), i))
        members.append(left.pop(chosen))
    return [candidate for candidate, _ in members] if len(members) > 1 else []


def _is_close(best: FreshScore, other: FreshScore) -> bool:
    ahead, error = lead(best, other)
    return ahead <= MOST_ERRORS * error


def _similarity(one: Scored, members: Sequence[Scored]) -> float:
    """Mean correlation of returns with those of the members; an unknown correlation counts as 1."""
    found = [
        correlation(one[1].returns, other[1].returns) if len(one[1].returns) == len(other[1].returns) else None
        for other in members
    ]
    return fmean(1.0 if value is None else value for value in found)
