"""Owns the model of `pb2`: a Gaussian process over hyperparameters whose truth changes with time. Needs scikit-learn.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", NeurIPS 2020, arXiv 2002.02518, section 4; the kernel is that of Bogunovic, Scarlett and Cevher, "Time-Varying
Gaussian Process Bandit Optimization", AISTATS 2016:
    k((x, t), (x', t')) = exp(-|x - x'|^2 / (2 l^2)) (1 - e)^(|t - t'| / 2)
The second factor is an exponential in |t - t'|. Values are standardised and cut at 2 deviations. Length l, forgetting
e and noise are the ones of a small grid under which the values are most likely: a search along gradients may end
elsewhere on another machine, and every decision must come out the same when it is replayed.

scikit-learn is imported when it is needed, because the leaderboard does without it for every other strategy.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

LENGTHS = (0.15, 0.4, 1.0)
FORGETTING = (0.01, 0.15)
NOISES = (0.05, 0.4)
"""Variances; that of the standardised values is 1."""
LARGEST_VALUE = 2.0
ENDLESS = 1e6
"""A length beside which distances vanish."""


@dataclass(frozen=True)
class Point:
    """Hyperparameters at a time."""

    position: tuple[float, ...]
    """Each from 0 to 1."""
    time: float
    """When they began to act."""

    @property
    def row(self) -> list[float]:
        """As scikit-learn takes it: the position, then the time."""
        return [*self.position, self.time]


def most_promising(
    offered: Sequence[Point], tried: Sequence[Point], values: Sequence[float], pending: Sequence[Point]
) -> int:
    """The index of the offered point with the highest upper confidence bound; the first among equals.

    mean + sqrt(beta) deviation, beta = 0.2 + max(0, ln(0.4 n)) of n tried points, as in the paper's implementation in
    Ray Tune. Points that are being tried are believed to come out as expected: they leave the mean and lower the
    deviation (section 4.2; Desautels, Krause and Burdick, "Parallelizing Exploration-Exploitation Tradeoffs in Gaussian
    Process Bandit Optimization", JMLR 2014).

    Args:
        offered: At least one.
        tried: At least two.
        values: What came of each.
        pending: Being tried.
    """
    targets = standardized(values)
    rows = [point.row for point in tried]
    model = _most_likely(rows, targets)
    asked = [point.row for point in offered]
    means = model.predict(asked).tolist()
    if pending:
        coming = [point.row for point in pending]
        model.fit([*rows, *coming], [*targets, *model.predict(coming).tolist()])
    deviations = model.predict(asked, return_std=True)[1].tolist()
    weight = math.sqrt(0.2 + max(0.0, math.log(0.4 * len(tried))))
    # Far below the noise of any score, and far above what two machines round differently.
    bounds = [round(mean + weight * deviation, 9) for mean, deviation in zip(means, deviations, strict=True)]
    return bounds.index(max(bounds))


def standardized(values: Sequence[float]) -> list[float]:
    """Values in deviations from their mean, cut; zeros if all are equal."""
    mean, deviation = fmean(values), pstdev(values)
    if not deviation:
        return [0.0] * len(values)
    return [min(max((value - mean) / deviation, -LARGEST_VALUE), LARGEST_VALUE) for value in values]


def _most_likely(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> Any:
    """The model of the grid under which the targets are most likely; the first among equals."""
    models = (_fitted(rows, targets, *setting) for setting in itertools.product(LENGTHS, FORGETTING, NOISES))
    return max(models, key=lambda model: round(model.log_marginal_likelihood_value_, 6))


def _fitted(
    rows: Sequence[Sequence[float]], targets: Sequence[float], length: float, forgetting: float, noise: float
) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, Matern

    dimensions = len(rows[0]) - 1
    near = RBF(length_scale=[length] * dimensions + [ENDLESS])
    # A Matern kernel of order 1/2 is exp(-d / scale); scale = -2 / ln(1 - e) makes it (1 - e)^(d / 2).
    recent = Matern(length_scale=[ENDLESS] * dimensions + [-2 / math.log1p(-forgetting)], nu=0.5)
    return GaussianProcessRegressor(near * recent, alpha=noise, optimizer=None).fit(rows, targets)
