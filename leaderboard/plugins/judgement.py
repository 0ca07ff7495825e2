"""Checks the answer of an updater plugin and records it in the candidate. Pure.

    check(answer)                                    # raises InvalidArgument for an invalid answer
    candidate = with_opinion(candidate, address, answer)

leaderboard.ranking.board decides what an opinion changes on a board.
"""

import math

from podrace.errors import InvalidArgument
from podrace.evolution.v1.evolution_pb2 import JudgeCandidateResponse
from podrace.leaderboard.v1.leaderboard_pb2 import (
    OPINION_ACCEPT,
    OPINION_BY_RANK,
    OPINION_REFUSE,
    OPINION_UNSPECIFIED,
    Candidate,
)
from podrace.printable import one_line

OPINIONS = {OPINION_ACCEPT: "accept", OPINION_REFUSE: "refuse", OPINION_BY_RANK: "by rank"}
"""Every opinion that an updater may give, as text."""


def check(answer: JudgeCandidateResponse) -> None:
    """Checks an answer.

    Raises:
        InvalidArgument: The answer is invalid; the message has the field, its value and what is expected.
    """
    if answer.opinion not in OPINIONS:
        raise InvalidArgument(
            f"opinion = {answer.opinion}: expected OPINION_ACCEPT ({OPINION_ACCEPT}), OPINION_REFUSE"
            f" ({OPINION_REFUSE}) or OPINION_BY_RANK ({OPINION_BY_RANK})"
        )
    if not math.isfinite(answer.rank_score):
        raise InvalidArgument(f"rank_score = {answer.rank_score}: expected a finite number")


def with_opinion(candidate: Candidate, updater: str, answer: JudgeCandidateResponse) -> Candidate:
    """Returns the candidate with the opinion of an updater plugin.

    Args:
        candidate: Not yet judged.
        updater: Address of the plugin.
        answer: Its valid answer.
    """
    judged = Candidate(
        opinion=answer.opinion, opinion_reason=f"{updater}: {one_line(answer.reason) or 'no reason given'}"
    )
    if answer.HasField("rank_score"):
        judged.rank_score = answer.rank_score
        judged.opinion_reason += f" (ranked by {answer.rank_score:.4g})"
    judged.MergeFrom(candidate)
    return judged


def without_opinion(candidate: Candidate, problem: str) -> Candidate:
    """Returns the candidate with the reason why the updater gave no usable answer; the built-in rules judge it."""
    judged = Candidate(opinion=OPINION_UNSPECIFIED, opinion_reason=problem)
    judged.MergeFrom(candidate)
    return judged
