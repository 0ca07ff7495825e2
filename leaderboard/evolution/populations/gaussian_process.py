"""Fits the model of `pb2`: a Gaussian process over hyperparameters whose effect changes with time. Needs scikit-learn.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits", NeurIPS 2020, arXiv 2002.02518, section 4; the kernel is that of Bogunovic, Scarlett and Cevher, "Time-Varying
Gaussian Process Bandit Optimization", AISTATS 2016:
    k((x, t), (x', t')) = exp(-|x - x'|^2 / (2 l^2)) (1 - e)^(|t - t'| / 2)
The second factor is an exponential in |t - t'|. With choices h, the kernel is that of PB2-Mix (Parker-Holder, Nguyen,
Desai and Roberts, arXiv 2106.15883, section 4; Ru et al., "Bayesian Optimisation over Multiple Continuous and
Categorical Inputs", ICML 2020). What is learned about x with one choice then counts for the others as far as the data
support it:
    k((x, h, t), (x', h', t')) = (1 - m) / 2 (k_x + k_h) + m k_x k_h
    k_x = exp(-|x - x'|^2 / (2 l^2)) (1 - e)^(|t - t'| / 2)
    k_h = (share of the choices in which h and h' are equal) (1 - e)^(|t - t'| / 2)
Values are standardized and clipped at 2 deviations. Length l, forgetting e, mixture m and noise are taken from a small
grid, by maximum likelihood. A gradient search is not used, because its result may differ between machines, and a replay
must reproduce every decision.

scikit-learn is imported on first use: no other strategy needs it.
"""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

LENGTHS = (0.15, 0.4, 1.0)
FORGETTING = (0.01, 0.15)
NOISES = (0.05, 0.4)
"""Variances of the noise; the standardized values have variance 1."""
MIXTURES = (0.0, 0.5, 1.0)
"""Weights of the product of the two kernels, where there are choices."""
LARGEST_VALUE = 2.0
ENDLESS = 1e6
"""A length so large that distances do not matter."""
DISTINCT = 0.01
"""A length so small that whole numbers that differ have nothing in common: exp(-1 / (2 DISTINCT^2)) is 0."""


@dataclass(frozen=True)
class Point:
    """Hyperparameters at a time."""

    position: tuple[float, ...]
    """Each from 0 to 1."""
    time: float
    """When training with them began."""
    choices: tuple[int, ...] = ()
    """Index of each choice."""

    @property
    def row(self) -> list[float]:
        """The position, the choices, then the time: a row for scikit-learn."""
        return [*self.position, *self.choices, self.time]


def most_promising(
    offered: Sequence[Point], tried: Sequence[Point], values: Sequence[float], pending: Sequence[Point]
) -> int:
    """Returns the index of the offered point with the highest upper confidence bound; the first among equals.

    The bound is mean + sqrt(beta) deviation with beta = 0.2 + max(0, ln(0.4 n)) for n tried points, as in the paper's
    implementation in Ray Tune. Pending points are assumed to have the predicted value: they do not change the mean, but
    lower the deviation (section 4.2; Desautels, Krause and Burdick, "Parallelizing Exploration-Exploitation Tradeoffs
    in Gaussian Process Bandit Optimization", JMLR 2014).

    Args:
        offered: Points to choose from, at least one, all with as many choices.
        tried: Points with a known value, at least two.
        values: Value of each tried point.
        pending: Points whose value is not known yet.
    """
    targets = standardized(values)
    rows = [point.row for point in tried]
    model = _most_likely(rows, targets, len(tried[0].choices))
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
    if not values:
        return []
    mean, deviation = fmean(values), pstdev(values)
    if not deviation:
        return [0.0] * len(values)
    return [min(max((value - mean) / deviation, -LARGEST_VALUE), LARGEST_VALUE) for value in values]


def _most_likely(rows: Sequence[Sequence[float]], targets: Sequence[float], choices: int) -> Any:
    """Returns the model of the grid with the highest likelihood; the first among equals."""
    mixtures = MIXTURES if choices else MIXTURES[:1]
    grid = itertools.product(LENGTHS, FORGETTING, NOISES, mixtures)
    models = (
        _fitted(rows, targets, length, forgetting, noise, choices, mixture)
        for length, forgetting, noise, mixture in grid
    )
    return max(models, key=lambda model: round(model.log_marginal_likelihood_value_, 6))


def _fitted(
    rows: Sequence[Sequence[float]],
    targets: Sequence[float],
    length: float,
    forgetting: float,
    noise: float,
    choices: int = 0,
    mixture: float = 0.0,
) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    kernel = _kernel(len(rows[0]) - 1 - choices, choices, length, forgetting, mixture)
    return GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(rows, targets)


def _kernel(numbers: int, choices: int, length: float, forgetting: float, mixture: float) -> Any:
    """Returns the kernel over rows of some numbers, some choices, and the time."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    near = RBF(length_scale=[length] * numbers + [ENDLESS] * (choices + 1))
    # A Matern kernel of order 1/2 is exp(-d / scale); scale = -2 / ln(1 - e) makes it (1 - e)^(d / 2).
    recent = Matern(length_scale=[ENDLESS] * (numbers + choices) + [-2 / math.log1p(-forgetting)], nu=0.5)
    if not choices:
        return near * recent
    equal = [
        RBF(length_scale=[ENDLESS] * (numbers + one) + [DISTINCT] + [ENDLESS] * (choices - one))
        for one in range(choices)
    ]
    same = ConstantKernel(1 / choices) * functools.reduce(operator.add, equal)
    numeric, categorical = near * recent, same * recent
    # A constant of 0 has no logarithm, which scikit-learn keeps constants by. Every kernel is 1 on the diagonal.
    if mixture == 1:
        return numeric * categorical
    half = ConstantKernel((1 - mixture) / 2)
    added = half * numeric + half * categorical
    return added + ConstantKernel(mixture) * (numeric * categorical) if mixture else added
