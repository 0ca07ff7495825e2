"""Decides whether a candidate must be verified before it may lead, which one is next, and whether it passes. Pure.

With `evaluation.verify = n`, a candidate that would rank first is held: it is not on the board, and nothing is decided
by its score. Another pod than those that trained its agent plays the first n episodes of the same evaluation epoch with
its policy. If both agree, the candidate arrives at the board as if it had been submitted then. If they do not, it is
refused, now and when it is submitted again.

- One candidate of a tournament is verified at a time, the one that would rank first among those that are held.
- A held candidate that would not lead any more, because another one was verified meanwhile, needs no verification: it
  arrives at once.
- An agent whose candidates were refused MOST_REJECTIONS times is not verified again: what would lead is refused.

Two scores agree if the stated one is not higher than the verified one by more than a tolerance. Episode i of an epoch
is the same for all pods, so stated and verified returns are compared one by one: the mean of the differences d_i of n
episodes must be at most 3 s / sqrt(n). The deviation s is the smaller one of the deviation of the differences and
sqrt(2) times that of the verified returns (the deviation of a difference of independent returns): returns are invented
by the pod that is checked, and one that is far off must not widen its own tolerance. Episodes that no other pod played
could be invented as well, so the stated score, the mean of N episodes, must also be at most 3 s sqrt(1/n + 1/N) above
the verified mean, with s the deviation of the verified returns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from leaderboard.ranking.board import Board, rank_key
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate

MOST_REJECTIONS = 3
TOLERANCE_ERRORS = 3.0
"""Standard errors by which a stated score may exceed the verified one."""
ROUNDING = 1e-5
"""Relative difference of returns that machines may round differently."""


@dataclass(frozen=True)
class Finding:
    """The result of a verification."""

    agrees: bool
    reason: str
    """Why, as one human-readable line."""


def would_lead(board: Board, candidate: Candidate) -> bool:
    """Whether a candidate would rank first on a board."""
    return not board or rank_key(candidate) < rank_key(board[0])


def next_of(held: Sequence[Candidate]) -> Candidate | None:
    """Returns the held candidate to verify next: the one that would rank first; None if there is none."""
    return min(held, key=rank_key, default=None)


def compare(candidate: Candidate, verified: Evaluation) -> Finding:
    """Compares the score that a pod states with the score that another pod measured.

    Args:
        candidate: The candidate, with the returns of its episodes if they can be repeated.
        verified: The evaluation of the other pod, of the same evaluation epoch.
    """
    count, mean = verified.episodes, verified.mean_return
    if not count or not math.isfinite(mean) or not math.isfinite(verified.variance):
        return Finding(False, "the evaluation of another pod has no score")
    spread = math.sqrt(max(verified.variance, 0.0))
    size = ROUNDING * max(1.0, abs(mean), abs(candidate.score))
    named = f"stated {candidate.score:.6g}, another pod measured {mean:.6g} over {count} episodes"
    allowed = TOLERANCE_ERRORS * spread * math.sqrt(1.0 / count + 1.0 / max(1, candidate.episodes)) + size
    if candidate.score - mean > allowed:
        return Finding(False, f"{named}: more than {allowed:.3g} above it")
    differences = [
        stated - played
        for stated, played in zip(candidate.episode_returns, verified.episode_returns, strict=False)
        if math.isfinite(played)
    ]
    if len(differences) < 2:
        return Finding(True, f"{named}; the episodes cannot be compared one by one")
    deviation = min(stdev(differences), math.sqrt(2.0) * spread)
    lead, tolerance = fmean(differences), TOLERANCE_ERRORS * deviation / math.sqrt(len(differences)) + size
    if lead > tolerance:
        return Finding(
            False,
            f"{named}: on the same {len(differences)} episodes the stated returns are {lead:.3g} higher, tolerance"
            f" {tolerance:.3g}",
        )
    return Finding(True, f"{named}; on the same {len(differences)} episodes the difference is {lead:.3g}")
