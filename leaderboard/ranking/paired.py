"""Compares two candidates: the difference of their scores and its standard error. Pure.

Two candidates of one evaluation epoch were scored on the same episodes. If the episodes of the tournament correlate by
more than 0.2 (podrace.comparison.paired), the difference is the mean difference over their common episodes, and its
error is that of paired differences. Otherwise it is the difference of their estimates (of their scores, for candidates
without an estimate), and its error is sqrt(a^2 + b^2).
"""

import math
from dataclasses import dataclass

from podrace.comparison.paired import LEAST_CORRELATION, LEAST_EPISODES, paired_difference
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


@dataclass(frozen=True)
class Difference:
    """By how much one candidate is better than another."""

    value: float
    """Difference of their returns."""
    error: float
    """Standard error of it."""
    paired: bool
    """Whether they were compared episode by episode."""


def ranked_score(candidate: Candidate) -> float:
    """Returns the number that a board ranks a candidate by: its estimate if it has one, else its score."""
    return candidate.estimate if candidate.HasField("estimate") else candidate.score


def ranked_error(candidate: Candidate) -> float:
    """Returns the standard error of that number."""
    return candidate.estimate_error if candidate.HasField("estimate") else candidate.standard_error


def difference(one: Candidate, other: Candidate) -> Difference:
    """Returns by how much `one` is better than `other`."""
    if common_episodes(one, other):
        value, error = paired_difference(one.episode_returns, other.episode_returns)
        return Difference(value, error, paired=True)
    error = math.hypot(ranked_error(one), ranked_error(other))
    return Difference(ranked_score(one) - ranked_score(other), error, paired=False)


def common_episodes(one: Candidate, other: Candidate) -> int:
    """Returns the number of episodes over which two candidates are paired; 0 if the comparison is unpaired.

    The correlation of the tournament is the one that was known when the later of them arrived.
    """
    for candidate in (one, other):
        if not candidate.HasField("evaluation_epoch"):
            return 0
    # A plugin and the built-in evaluator measure different things.
    if one.evaluation_epoch != other.evaluation_epoch or bool(one.evaluator_fault) != bool(other.evaluator_fault):
        return 0
    later = max(one, other, key=lambda candidate: candidate.sequence)
    common = min(len(one.episode_returns), len(other.episode_returns))
    return common if common >= LEAST_EPISODES and later.episode_correlation > LEAST_CORRELATION else 0
