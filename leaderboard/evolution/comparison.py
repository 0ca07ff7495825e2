"""Owns how noisy scores are compared where somebody loses by it.

A score is a mean over some episodes and has a standard error. The difference of two has sqrt(a^2 + b^2), and a lead of
less than that is no reason to throw training away: the one-standard-error rule, as at the door of a full board
(leaderboard.ranking.board). Who is first among several is decided by the order of the board, which is total: equal
scores go
to the lower error, then to fewer steps, then to the lower number, so that nothing depends on who was listed first.
"""

import math
from collections.abc import Sequence

from leaderboard.ranking.board import Board, rank_key
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def ranked(candidates: Sequence[Candidate]) -> Board:
    """Candidates, the best first."""
    return tuple(sorted(candidates, key=rank_key))


def error_of_difference(one: Candidate, other: Candidate) -> float:
    """Standard error of the difference of two independent scores."""
    return math.hypot(one.standard_error, other.standard_error)


def leads(one: Candidate, other: Candidate) -> bool:
    """Whether a score is higher than another by more than the standard error of the difference."""
    return one.score - other.score > error_of_difference(one, other)


def share_of(count: int, share: float) -> int:
    """How many of `count` a share of them is, rounded up, but never more than half: nobody is among both ends."""
    # 0.07 * 100 is a little more than 7 in binary.
    return min(math.ceil(share * count - 1e-9), count // 2)
