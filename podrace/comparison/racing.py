"""Decides during an evaluation whether more episodes are needed to compare a policy with a given score.

An evaluation is a group-sequential test: after 8, 16, 32 ... episodes the difference to the bar is compared with a
bound, and the first stage at which the bound is crossed decides. The bounds are those of O'Brien and Fleming ("A
multiple testing procedure for clinical trials", Biometrics 35, 1979; Jennison and Turnbull, "Group Sequential Methods",
2000, section 2.5): |Z_k| >= C / sqrt(t_k) at stage k, where t_k is the share of the information, and C is chosen such
that a policy as good as the bar is decided either way with probability ERROR over all stages. Early stages have high
bounds, so an evaluation stops early only if the difference is obvious, and the last stage is almost a fixed test.

Z_k is computed with an estimated deviation. A t statistic is therefore replaced by the normal one with the same tail
probability, by the approximation of Wallace (1959, Annals of Mathematical Statistics 30, 1124-1130):
    z = (8 v + 1) / (8 v + 3) sqrt(v log(1 + t^2 / v))   for v degrees of freedom
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Literal

from podrace.comparison.paired import paired_difference

Decision = Literal["continue", "behind", "ahead"]
FIRST_STAGE = 8
"""Episodes before the first decision."""
MOST_STAGES = 7
"""Stages of one evaluation, at most: less than 1/64 of the episodes could decide nothing."""
ERROR = 0.2
"""Probability that a policy as good as the bar is decided to be behind or ahead, half of it for each side. On recorded
tournaments (`benchmarks/racing.py`) 99 % of comparisons are then decided as by all episodes, with 46 % of them; with
0.1 it takes 53 %."""
ROUNDING = 1 / 64
"""Shares of the information are rounded to multiples of this."""
_GRID = 120
"""Intervals of the numerical integration; even."""
_PRECISION = 1e-6
"""Error of the probability that a boundary is computed for."""


@dataclass(frozen=True)
class Bar:
    """What a policy has to beat."""

    score: float
    """Score of the reference."""
    standard_error: float
    """Standard error of that score."""
    returns: Sequence[float] = ()
    """Returns of the reference on the same episodes, in order; empty: the comparison is unpaired."""


@dataclass(frozen=True)
class Sample:
    """The score of a policy over the episodes played so far."""

    mean: float
    """Mean return."""
    variance: float
    """Unbiased variance of the return."""
    episodes: int
    """Number of episodes."""
    returns: Sequence[float] = ()
    """Their returns in order; empty if they are not known one by one."""

    @classmethod
    def of(cls, returns: Sequence[float]) -> "Sample":
        """Returns the sample of at least two returns."""
        mean = fmean(returns)
        variance = math.fsum((value - mean) ** 2 for value in returns) / (len(returns) - 1)
        return cls(mean, variance, len(returns), returns)


def stages(episodes: int, lanes: int = 1) -> tuple[int, ...]:
    """Returns after how many episodes an evaluation of at most `episodes` episodes may stop; the last is `episodes`.

    Args:
        episodes: At least 1.
        lanes: Episodes that are played at the same time, so that fewer would save nothing.
    """
    first = FIRST_STAGE
    while first < lanes or first * 2 ** (MOST_STAGES - 1) < episodes:
        first *= 2
    found = []
    while first < episodes:
        found.append(first)
        first *= 2
    return (*found, episodes)


def decide(sample: Sample, bar: Bar, planned: Sequence[int]) -> Decision:
    """Decides after one of the stages of an evaluation.

    Args:
        sample: The episodes played so far, as many as one of `planned`.
        bar: What the policy has to beat.
        planned: The stages of the evaluation.

    Returns:
        `behind` or `ahead` if that is decided. `continue` if it is not; then further episodes are needed, unless this
        was the last stage.
    """
    episodes = sample.episodes
    if episodes < 2:
        return "continue"
    paired = len(sample.returns) == episodes and len(bar.returns) >= episodes
    if paired:
        difference, error = paired_difference(sample.returns, bar.returns)
        shares = {stage: stage / planned[-1] for stage in planned}
    else:
        # More episodes reduce the error of the policy's score, and not that of the bar.
        squared = {stage: sample.variance / stage + bar.standard_error**2 for stage in planned}
        difference, error = sample.mean - bar.score, math.sqrt(squared[episodes])
        shares = {stage: squared[planned[-1]] / value if value else 1.0 for stage, value in squared.items()}
    if difference == 0.0:
        return "continue"
    if error:
        constant = boundary_constant(_rounded(shares.values()))
        if normal_of_t(abs(difference) / error, episodes - 1) < constant / math.sqrt(shares[episodes]):
            return "continue"
    return "ahead" if difference > 0 else "behind"


def _rounded(shares: Iterable[float]) -> tuple[float, ...]:
    """Rounds shares of the information, so that the constants of a few rows of them suffice for all evaluations."""
    return tuple(sorted({max(ROUNDING, round(share / ROUNDING) * ROUNDING) for share in shares} | {1.0}))


def normal_of_t(t: float, degrees: int) -> float:
    """Returns the standard normal value with the tail probability of a t statistic (Wallace 1959); both at least 0."""
    return (8 * degrees + 1) / (8 * degrees + 3) * math.sqrt(degrees * math.log1p(t * t / degrees))


@cache
def boundary_constant(information: tuple[float, ...], error: float = ERROR) -> float:
    """Returns the constant C of the bounds C / sqrt(t_k).

    Args:
        information: Shares t_k of the information at the stages, ascending; the last is 1.
        error: Probability that one of the bounds is crossed although there is no difference.
    """
    # A walk crosses with at least the probability of its last stage, and at most with the sum over the stages.
    before = NormalDist().inv_cdf(1 - error / 2)
    now = NormalDist().inv_cdf(1 - error / (2 * len(information)))
    excess_before, excess = (crossing_probability(information, one) - error for one in (before, now))
    # The secant method: the probability is smooth in the constant, and nearly linear between the two.
    while abs(excess) > _PRECISION:
        secant = now - excess * (now - before) / (excess - excess_before)
        before, now = now, secant
        excess_before, excess = excess, crossing_probability(information, secant) - error
    return now


def crossing_probability(information: Sequence[float], constant: float) -> float:
    """Returns the probability that |Z_k| >= constant / sqrt(t_k) at any stage, without a difference.

    B_k = sqrt(t_k) Z_k is a Brownian motion at the times t_k, and the bound for it is the constant itself. The density
    of B_k on the paths that have stayed below is integrated from stage to stage with Simpson's rule (Armitage,
    McPherson and Rowe 1969; Jennison and Turnbull 2000, section 19.2).
    """
    step = 2 * constant / _GRID
    points = [-constant + index * step for index in range(_GRID + 1)]
    weights = [step / 3 * (1 if index in (0, _GRID) else 4 if index % 2 else 2) for index in range(_GRID + 1)]
    density = [_normal_density(point, information[0]) for point in points]
    for before, now in pairwise(information):
        # The kernel depends on the distance of two points only.
        kernel = [_normal_density(index * step, now - before) for index in range(_GRID + 1)]
        mass = [weight * value for weight, value in zip(weights, density, strict=True)]
        density = [
            math.fsum(mass[other] * kernel[abs(point - other)] for other in range(_GRID + 1))
            for point in range(_GRID + 1)
        ]
    return 1.0 - math.fsum(weight * value for weight, value in zip(weights, density, strict=True))


def _normal_density(value: float, variance: float) -> float:
    return math.exp(-value * value / (2 * variance)) / math.sqrt(2 * math.pi * variance)
