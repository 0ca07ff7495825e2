"""Compares noisy scores where the loser is replaced.

Two candidates that were scored on common episodes are compared episode by episode, others by their estimates
(leaderboard.ranking.paired). A lead within the standard error of the difference is no reason to discard training: the
one-standard-error rule, as for a full board (leaderboard.ranking.board). Several candidates are ranked in the order of
the board, which is total: equal estimates are ordered by the lower error, then by fewer steps, then by the lower
number, so no result depends on the order of a list.
"""

import math
from collections.abc import Sequence

from leaderboard.ranking.board import Board, rank_key
from leaderboard.ranking.paired import difference
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


def ranked(candidates: Sequence[Candidate]) -> Board:
    """Returns the candidates, the best first."""
    return tuple(sorted(candidates, key=rank_key))


def error_of_difference(one: Candidate, other: Candidate) -> float:
    """Returns the standard error of the difference of two candidates."""
    return difference(one, other).error


def leads(one: Candidate, other: Candidate) -> bool:
    """Whether a candidate is better than another by more than the standard error of the difference."""
    lead = difference(one, other)
    return lead.value > lead.error


def share_of(count: int, share: float) -> int:
    """Returns how many of `count` a share of them is, rounded up, at most half: no candidate is at both ends."""
    # 0.07 * 100 is a little more than 7 in binary.
    return min(math.ceil(share * count - 1e-9), count // 2)
