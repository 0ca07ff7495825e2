"""Compares policies by fresh evaluations, on the same episodes where possible. Pure.

For a choice, each score is shrunk towards the mean of the scores, in proportion to its noise (James and Stein; Efron
and Morris, "Stein's Estimation Rule and Its Competitors", 1973, with the variance of the true scores estimated by
moments):
    shrunken_i = m + t / (t + e_i^2) (score_i - m),   t = max(0, variance of the scores - mean of e_i^2)
with m the mean of the scores and e_i their standard errors. With equal errors the order does not change; otherwise a
noisier score counts less.

If k policies played the same n episodes, the luck of an episode that they share does not count as noise. With x_ij the
return of policy i in episode j, and s_i the sample deviation over j of x_ij - mean over i of x_ij:
    e_i^2 = k / (k - 1) s_i^2 / n
which is the squared standard error of the mean if the episodes do not correlate and the policies are equally noisy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.comparison.paired import LEAST_CORRELATION, LEAST_EPISODES, correlation, paired_difference


@dataclass(frozen=True)
class FreshScore:
    """A mean return over fresh episodes."""

    score: float
    """Mean return over the fresh episodes."""
    standard_error: float
    """Standard error of that mean."""
    episodes: int = 0
    """Number of episodes."""
    returns: tuple[float, ...] = ()
    """Return of each episode; empty if the episodes of different policies are not the same."""


def usable(result: Evaluation) -> bool:
    """Whether an evaluation has a valid result."""
    return result.episodes > 0 and math.isfinite(result.mean_return) and 0 <= result.variance < math.inf


def fresh_of(evaluation: Evaluation) -> FreshScore:
    """Returns the fresh score of an evaluation."""
    returns = tuple(evaluation.episode_returns)
    if len(returns) != evaluation.episodes or not all(map(math.isfinite, returns)):
        returns = ()
    error = math.sqrt(evaluation.variance / evaluation.episodes)
    return FreshScore(evaluation.mean_return, error, evaluation.episodes, returns)


def lead(one: FreshScore, other: FreshScore) -> tuple[float, float]:
    """Returns by how much `one` is better, and the standard error of that difference.

    Episode by episode if both played the same ones and their returns correlate by more than 0.2; otherwise the error is
    sqrt(a^2 + b^2).
    """
    if len(one.returns) == len(other.returns) and (correlation(one.returns, other.returns) or 0.0) > LEAST_CORRELATION:
        return paired_difference(one.returns, other.returns)
    return one.score - other.score, math.hypot(one.standard_error, other.standard_error)


def shrunken(scores: Sequence[FreshScore]) -> list[float]:
    """Returns the scores, each shrunk towards their mean; a single score is unchanged."""
    if len(scores) < 2:
        return [one.score for one in scores]
    scores = without_shared_luck(scores)
    mean = fmean(one.score for one in scores)
    noise = fmean(one.standard_error**2 for one in scores)
    true_variance = max(0.0, variance(one.score for one in scores) - noise)
    return [mean + _believed(true_variance, one) * (one.score - mean) for one in scores]


def without_shared_luck(scores: Sequence[FreshScore]) -> list[FreshScore]:
    """Returns at least two scores with the errors e_i above, if all of them played the same episodes."""
    count = len(scores[0].returns)
    if count < LEAST_EPISODES or any(len(one.returns) != count for one in scores):
        return list(scores)
    shared = [fmean(played) for played in zip(*(one.returns for one in scores), strict=True)]
    factor = len(scores) / (len(scores) - 1) / count
    return [
        replace(one, standard_error=math.sqrt(factor * variance(map(float.__sub__, one.returns, shared))))
        for one in scores
    ]


def _believed(true_variance: float, one: FreshScore) -> float:
    total = true_variance + one.standard_error**2
    return true_variance / total if total else 1.0
