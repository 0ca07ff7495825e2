"""Estimates by how much the episodes of evaluation epochs differ in difficulty. Pure.

The model is additive: score of checkpoint c in epoch e = effect of c + effect of e + noise. Only anchors, checkpoints
that were scored in several epochs, separate the effects of epochs from those of checkpoints. They are fitted by
weighted least squares with a prior on the effect of every epoch, epoch 0 included:

    minimize over a, b:  sum over (c, e) of w_ce (y_ce - a_c - b_e)^2 + sum over e of b_e^2 / v

Scores of epoch e are moved to the scale of epoch 0 by b_e - b_0. For an epoch without anchors b_e is 0, but b_0 is not:
if epoch 0 was easy, other epochs are harder on average. The weights follow from the correlation r of the episodes: of
the variance s^2 of a score over n common episodes, the part r s^2 is common to all policies, which makes it the
variance v of the effect of an epoch, and (1 - r) s^2 is noise of the single score. (A two-way model without
interaction; Searle, Casella and McCulloch, "Variance Components", 1992, chapter 7.) Uncorrelated episodes have no epoch
effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

LARGEST_CORRELATION = 0.95
"""Limit of the correlation in the weights, so that the noise of a score never vanishes."""
ROUNDING = 1e-6
"""Smallest standard error of a score, as a share of its size: scores of deterministic episodes have none."""


@dataclass(frozen=True)
class EpochResult:
    """The score of one checkpoint in one epoch."""

    epoch: int
    """The evaluation epoch, from 0."""
    score: float
    """Mean return."""
    standard_error: float
    """Its standard error."""


Anchor = Sequence[EpochResult]
"""The scores of one checkpoint, each of another epoch."""


@dataclass(frozen=True)
class EpochEffects:
    """How much higher scores are in each epoch than in epoch 0."""

    fitted: Mapping[int, float] = field(default_factory=dict)
    """The effect of each epoch with anchors, compared with the mean of all epochs."""

    def of(self, epoch: int) -> float:
        """Returns how much higher scores are in an epoch than in epoch 0."""
        return self.fitted.get(epoch, 0.0) - self.fitted.get(0, 0.0)


def epoch_effects(anchors: Sequence[Anchor], correlation: float) -> EpochEffects:
    """Returns how much higher scores are in each epoch than in epoch 0; by 0 if nothing is known.

    Args:
        anchors: Checkpoints that were scored in several epochs; others are ignored.
        correlation: Correlation of the returns of different policies on the same episodes.
    """
    used = [anchor for anchor in anchors if len({result.epoch for result in anchor}) > 1]
    epochs = sorted({result.epoch for anchor in used for result in anchor})
    if not epochs or correlation <= 0:
        return EpochEffects()
    common = min(correlation, LARGEST_CORRELATION)
    prior = common * fmean(_variance(result) for anchor in used for result in anchor)
    position = {epoch: index for index, epoch in enumerate(epochs)}
    matrix = [[1.0 / prior if row == column else 0.0 for column in range(len(epochs))] for row in range(len(epochs))]
    right = [0.0] * len(epochs)
    for anchor in used:
        _add_anchor(matrix, right, anchor, position, 1.0 - common)
    return EpochEffects(dict(zip(epochs, _solve(matrix, right), strict=True)))


def _add_anchor(
    matrix: list[list[float]], right: list[float], anchor: Anchor, position: Mapping[int, int], noise_share: float
) -> None:
    """Adds the normal equations of a checkpoint, from which its own effect is eliminated."""
    weights = [1.0 / (noise_share * _variance(result)) for result in anchor]
    total = sum(weights)
    mean = sum(weight * result.score for weight, result in zip(weights, anchor, strict=True)) / total
    for weight, result in zip(weights, anchor, strict=True):
        row = position[result.epoch]
        matrix[row][row] += weight
        right[row] += weight * (result.score - mean)
        for other_weight, other in zip(weights, anchor, strict=True):
            matrix[row][position[other.epoch]] -= weight * other_weight / total


def _variance(result: EpochResult) -> float:
    return max(result.standard_error, ROUNDING * max(1.0, abs(result.score))) ** 2


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solves a small symmetric positive definite system by Cholesky's method without square roots."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for pivot in range(size):
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / rows[pivot][pivot]
            for column in range(pivot, size + 1):
                rows[below][column] -= factor * rows[pivot][column]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
