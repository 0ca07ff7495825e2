"""Compares noisy scores where the loser is replaced.

A score is a mean over some episodes and has a standard error. The standard error of the difference of two scores is
sqrt(a^2 + b^2). A smaller lead is no reason to discard training: the one-standard-error rule, as for a full board
(leaderboard.ranking.board). Several candidates are ranked in the order of the board, which is total: equal scores are
ordered by the lower error, then by fewer steps, then by the lower number, so no result depends on the order of a list.
"""

import math
from collections.abc import Sequence

from leaderboard.ranking.board import Board, rank_key
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def ranked(candidates: Sequence[Candidate]) -> Board:
    """Returns the candidates, the best first."""
    return tuple(sorted(candidates, key=rank_key))


def error_of_difference(one: Candidate, other: Candidate) -> float:
    """Returns the standard error of the difference of two independent scores."""
    return math.hypot(one.standard_error, other.standard_error)


def leads(one: Candidate, other: Candidate) -> bool:
    """Whether a score is higher than another by more than the standard error of the difference."""
    return one.score - other.score > error_of_difference(one, other)


def share_of(count: int, share: float) -> int:
    """Returns how many of `count` a share of them is, rounded up, at most half: no candidate is at both ends."""
    # 0.07 * 100 is a little more than 7 in binary.
    return min(math.ceil(share * count - 1e-9), count // 2)
