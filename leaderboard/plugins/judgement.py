"""Owns what becomes of a custom updater's answer: whether it can be, and what the candidate then bears. Pure.

    check(answer)                                    # raises InvalidArgument for what cannot be
    candidate = with_opinion(candidate, address, answer)

What an opinion does on a board is leaderboard.ranking.board's.
"""

import math

from leaderboard.text import one_line
from podrace.errors import InvalidArgument
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateResponse
from podrace.leaderboard.v1.leaderboard_pb2 import (
    OPINION_ACCEPT,
    OPINION_BY_RANK,
    OPINION_REFUSE,
    OPINION_UNSPECIFIED,
    Candidate,
)

OPINIONS = {OPINION_ACCEPT: "accept", OPINION_REFUSE: "refuse", OPINION_BY_RANK: "by rank"}
"""What there is, in words."""


def check(answer: JudgeCandidateResponse) -> None:
    """Refuses an answer that cannot be.

    Raises:
        InvalidArgument: The message names the field, its value and what would be right.
    """
    if answer.opinion not in OPINIONS:
        raise InvalidArgument(
            f"opinion = {answer.opinion}: expected OPINION_ACCEPT ({OPINION_ACCEPT}), OPINION_REFUSE"
            f" ({OPINION_REFUSE}) or OPINION_BY_RANK ({OPINION_BY_RANK})"
        )
    if not math.isfinite(answer.rank_score):
        raise InvalidArgument(f"rank_score = {answer.rank_score}: expected a finite number")


def with_opinion(candidate: Candidate, updater: str, answer: JudgeCandidateResponse) -> Candidate:
    """The candidate with what a custom updater said of it.

    Args:
        candidate: Not yet judged.
        updater: The address of whoever said it.
        answer: One that can be.
    """
    told = Candidate(
        opinion=answer.opinion, opinion_reason=f"{updater}: {one_line(answer.reason) or 'no reason given'}"
    )
    if answer.HasField("rank_score"):
        told.rank_score = answer.rank_score
        told.opinion_reason += f" (ranked by {answer.rank_score:.4g})"
    told.MergeFrom(candidate)
    return told


def without_opinion(candidate: Candidate, problem: str) -> Candidate:
    """The candidate for which no usable answer came, with the reason: the rules of the house judge it."""
    told = Candidate(opinion=OPINION_UNSPECIFIED, opinion_reason=problem)
    told.MergeFrom(candidate)
    return told
