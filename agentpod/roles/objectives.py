"""Computes what episodes are worth by the objective of a tournament, and penalizes differences between folds. Pure.

With folds, the score is mean(x) - k s: x the worth of the episodes, s the standard deviation (n - 1) of the means m_f
of the F folds. Comparisons of two candidates need numbers of single episodes whose mean is the score. Since s is
homogeneous in the m_f, s = sum of g_f m_f with g_f = (m_f - mean(m)) / ((F - 1) s), and

    v_i = x_i - k (s + g_f (E / n_f) (x_i - m_f))        episode i in fold f; n_f of the E episodes are in fold f

have the mean of the score exactly. To first order, differences of v_i also have the variance of a difference of scores
(the delta method), so that paired comparisons and standard errors remain valid.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from statistics import fmean, stdev, variance

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DataLoss, InvalidArgument
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec

RETURN = "return"
"""The objective that needs no measure of the simulator."""
FOLD = "fold"
"""The measure that says in which fold an episode is."""
MOST_MEASURES = 32
"""Largest number of measures of single episodes that a simulator may report."""
MOST_FOLDS = 1_000_000
"""Largest number of a fold."""


def measure_of(spec: EvaluationSpec) -> str:
    """Returns the measure that an episode is worth by a specification; empty: its undiscounted return."""
    return "" if spec.objective == RETURN else spec.objective


def episode_values(objective: str, returns: Sequence[float], measures: Mapping[str, Sequence[float]]) -> list[float]:
    """Returns what each episode is worth.

    Args:
        objective: `return` or the name of a measure; empty: `return`.
        returns: Undiscounted return of each episode.
        measures: Measures of these episodes by name, as the simulator reports them.

    Raises:
        InvalidArgument: The simulator does not report the measure; the message lists those that it reports.
        DataLoss: The measure of an episode is missing or not finite.
    """
    if objective in ("", RETURN):
        return list(returns)
    if objective not in measures or objective == FOLD:
        known = ", ".join([RETURN, *sorted(measures.keys() - {FOLD})])
        raise InvalidArgument(
            f"evaluation.objective = {objective!r}: the simulator does not report this measure of single episodes for"
            f" evaluation.options; use one of: {known}"
        )
    values = list(measures[objective])
    if len(values) != len(returns) or not all(map(isfinite, values)):
        raise DataLoss(
            f"evaluation.objective = {objective!r}: the simulator reported {sum(map(isfinite, values))} finite values"
            f" for {len(returns)} episodes",
            reason="ERROR_REASON_NON_FINITE",
        )
    return values


@dataclass(frozen=True)
class FoldScore:
    """The scores of the folds together."""

    deviation: float
    """Standard deviation of the means of the folds; 0 for one fold."""
    values: tuple[float, ...]
    """What each episode is worth after the penalty."""


def score_folds(values: Sequence[float], folds: Sequence[int], deviations: float) -> FoldScore:
    """Subtracts some standard deviations between folds from the mean of the episodes.

    Args:
        values: What each episode is worth.
        folds: The fold of each episode.
        deviations: How many standard deviations to subtract, k.
    """
    members: dict[int, list[float]] = defaultdict(list)
    for value, fold in zip(values, folds, strict=True):
        members[fold].append(value)
    means = {fold: fmean(own) for fold, own in members.items()}
    spread = stdev(means.values()) if len(means) > 1 else 0.0
    if not spread or not deviations:
        return FoldScore(spread, tuple(values))
    center = fmean(means.values())
    weights = {
        fold: (mean - center) / ((len(means) - 1) * spread) * len(values) / len(members[fold])
        for fold, mean in means.items()
    }
    penalized = (
        value - deviations * (spread + weights[fold] * (value - means[fold]))
        for value, fold in zip(values, folds, strict=True)
    )
    return FoldScore(spread, tuple(penalized))


def penalize_folds(evaluation: Evaluation, deviations: float, *, required: bool) -> Evaluation:
    """Returns an evaluation whose score is reduced by some standard deviations between folds.

    Args:
        evaluation: An evaluation without a penalty. Not changed.
        deviations: `evaluation.fold_deviations` of the tournament; 0: the deviation is only stated.
        required: Whether folds must exist if deviations are to be subtracted.

    Raises:
        InvalidArgument: Folds are required, and the evaluation has none.
    """
    if not evaluation.episode_folds:
        if deviations and required:
            why = evaluation.unpaired_reason or "the simulator reports no folds for evaluation.options"
            raise InvalidArgument(f"evaluation.fold_deviations = {deviations:g}: {why}; set it to 0")
        return evaluation
    scored = score_folds(evaluation.episode_returns, evaluation.episode_folds, deviations)
    changed = Evaluation()
    changed.CopyFrom(evaluation)
    changed.fold_deviation = scored.deviation
    if deviations:
        del changed.episode_returns[:]
        changed.episode_returns.extend(scored.values)
        changed.mean_return = fsum(scored.values) / len(scored.values)
        changed.variance = variance(scored.values) if len(scored.values) > 1 else 0.0
    return changed
