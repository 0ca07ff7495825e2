"""Fits the model of `pb2`: a Gaussian process over hyperparameters whose effect changes with time. Needs scikit-learn.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", NeurIPS 2020, arXiv 2002.02518, section 4; the kernel is that of Bogunovic, Scarlett and Cevher, "Time-Varying
Gaussian Process Bandit Optimization", AISTATS 2016:
    k((x, t), (x', t')) = exp(-|x - x'|^2 / (2 l^2)) (1 - e)^(|t - t'| / 2)
The second factor is an exponential in |t - t'|. Values are standardized and clipped at 2 deviations. Length l,
forgetting e and noise are taken from a small grid, by maximum likelihood. A gradient search is not used, because its
result may differ between machines, and a replay must reproduce every decision.

scikit-learn is imported on first use: no other strategy needs it.
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
"""Variances of the noise; the standardized values have variance 1."""
LARGEST_VALUE = 2.0
ENDLESS = 1e6
"""A length so large that distances do not matter."""


@dataclass(frozen=True)
class Point:
    """Hyperparameters at a time."""

    position: tuple[float, ...]
    """Each from 0 to 1."""
    time: float
    """When training with them began."""

    @property
    def row(self) -> list[float]:
        """The position, then the time: a row for scikit-learn."""
        return [*self.position, self.time]


def most_promising(
    offered: Sequence[Point], tried: Sequence[Point], values: Sequence[float], pending: Sequence[Point]
) -> int:
    """Returns the index of the offered point with the highest upper confidence bound; the first among equals.

    The bound is mean + sqrt(beta) deviation with beta = 0.2 + max(0, ln(0.4 n)) for n tried points, as in the paper's
    implementation in Ray Tune. Pending points are assumed to have the predicted value: they do not change the mean, but
    lower the deviation (section 4.2; Desautels, Krause and Burdick, "Parallelizing Exploration-Exploitation Tradeoffs
    in Gaussian Process Bandit Optimization", JMLR 2014).

    Args:
        offered: Points to choose from, at least one.
        tried: Points with a known value, at least two.
        values: Value of each tried point.
        pending: Points whose value is not known yet.
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
    # Nine digits are far below the noise of any score, and far above rounding differences between machines.
    bounds = [round(mean + weight * deviation, 9) for mean, deviation in zip(means, deviations, strict=True)]
    return bounds.index(max(bounds))


def standardized(values: Sequence[float]) -> list[float]:
    """Returns the values in standard deviations from their mean, clipped; zeros if all are equal."""
    mean, deviation = fmean(values), pstdev(values)
    if not deviation:
        return [0.0] * len(values)
    return [min(max((value - mean) / deviation, -LARGEST_VALUE), LARGEST_VALUE) for value in values]


def _most_likely(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> Any:
    """Returns the model of the grid with the highest likelihood; the first among equals."""
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
