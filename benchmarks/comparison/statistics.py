"""Computes the statistics of the comparison. Pure; needs numpy only.

Following Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021: returns are normalized per task, aggregated over tasks and seeds by the
interquartile mean (section 4.3), with stratified bootstrap percentile intervals (section 4.1, appendix A.2).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
CONFIDENCE = 0.9
RESAMPLES = 5000
EXACT_SEEDS = 12
"""With more seeds than this, the permutation test draws sign changes instead of enumerating them."""
DRAWN_SIGNS = 2**EXACT_SEEDS
TRIMMED = 0.25
"""Share that an interquartile mean leaves out at each end."""


@dataclass(frozen=True)
class Interval:
    """A statistic and its bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


@dataclass(frozen=True)
class Curve:
    """An anytime curve: return of the policy that a contender would deliver at that time.

    Attributes:
        positions: Seconds or environment steps, ascending.
        values: Return from that position on, until the next.
    """

    positions: tuple[float, ...]
    values: tuple[float, ...]


# --- aggregates --------------------------------------------------------------------------------------------------


FEWEST_SEEDS = 3
"""With fewer seeds of a task there is no interval: resampling one seed shows no spread at all."""


def normalized(value: float, random: float, oracle: float) -> float:
    """Returns a return on the scale where 0 is the random policy and 1 the oracle.

    Raises:
        ValueError: The oracle is not better than the random policy.
    """
    if not oracle > random:
        raise ValueError(f"the oracle's return {oracle:g} is not above the random policy's {random:g}")
    return (value - random) / (oracle - random)


def interquartile_mean(values: Sequence[float] | Numbers) -> float:
    """Returns the mean without the lowest and the highest quarter (rounded down) of the values.

    Raises:
        ValueError: There are no values.
    """
    ordered = np.sort(np.asarray(values, float))
    if not len(ordered):
        raise ValueError("an interquartile mean needs at least one value")
    cut = int(TRIMMED * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def interval_of(scores: Mapping[str, Sequence[float]], *, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """Returns the interquartile mean over tasks and seeds with its stratified bootstrap interval.

    Seeds are drawn with replacement within each task, so that every resample has as many runs of each task.

    Args:
        scores: Normalized returns by task.
        confidence: Share of the resampled statistics within the interval.
        seed: Seed of the resampling.
    """
    strata = [np.asarray(values, float) for _, values in sorted(scores.items())]
    return _bootstrapped(
        [len(stratum) for stratum in strata],
        lambda draws: interquartile_mean(np.concatenate([s[d] for s, d in zip(strata, draws, strict=True)])),
        confidence,
        seed,
    )


def difference_of(
    first: Mapping[str, Mapping[int, float]],
    second: Mapping[str, Mapping[int, float]],
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval | None:
    """Returns the difference of two interquartile means at equal seeds, with its stratified bootstrap interval.

    A resample draws the same seeds of a task for both. Tasks and seeds that only one of the two has are left out.

    Args:
        first: Normalized returns by task and seed.
        second: Those of the contender to compare with.
        confidence: Share of the resampled differences within the interval.
        seed: Seed of the resampling.

    Returns:
        The difference; None if the two have no task and seed in common.
    """
    pairs = [np.array(paired(first[task], second[task]), float) for task in sorted(first.keys() & second.keys())]
    pairs = [pair for pair in pairs if len(pair)]
    if not pairs:
        return None

    def difference(draws: Sequence[NDArray[np.int64]]) -> float:
        drawn = np.concatenate([pair[draw] for pair, draw in zip(pairs, draws, strict=True)])
        return interquartile_mean(drawn[:, 0]) - interquartile_mean(drawn[:, 1])

    return _bootstrapped([len(pair) for pair in pairs], difference, confidence, seed)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[tuple[float, float]]:
    """Returns the values of both at the seeds that both have, by seed."""
    return [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]


def _bootstrapped(
    sizes: Sequence[int], statistic: Callable[[Sequence[NDArray[np.int64]]], float], confidence: float, seed: int
) -> Interval:
    value = statistic([np.arange(size) for size in sizes])
    if min(sizes) < FEWEST_SEEDS:
        return Interval(value, math.nan, math.nan)
    random = np.random.default_rng(seed)
    found = [statistic([random.integers(size, size=size) for size in sizes]) for _ in range(RESAMPLES)]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))


# --- single tasks ------------------------------------------------------------------------------------------------


def sign_flip_test(differences: Sequence[float], *, seed: int = 0) -> float:
    """Returns the one-sided p-value that paired differences have a mean below 0 by chance.

    It is the share of all sign changes of the differences with a mean at most as high (Fisher's randomization test for
    pairs). The smallest possible value with n seeds is 2^-n.
    """
    values = np.asarray(differences, float)
    if not len(values):
        return 1.0
    if len(values) <= EXACT_SEEDS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
    else:
        drawn = np.random.default_rng(seed).integers(2, size=(DRAWN_SIGNS, len(values))) * 2.0 - 1.0
        # The observed differences are one of the possible ones.
        signs = np.vstack([np.ones(len(values)), drawn])
    means = signs @ values
    return float(np.mean(means <= means[0] + 1e-12 * np.abs(values).sum()))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Returns p-values adjusted for their number by the step-down method of Holm, "A Simple Sequentially Rejective
    Multiple Test Procedure", 1979: the k-th smallest of m is multiplied by m - k + 1, and none is below a smaller one.
    """
    adjusted, highest = {}, 0.0
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for place, (name, value) in enumerate(ordered):
        highest = max(highest, min(1.0, value * (len(ordered) - place)))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


# --- anytime curves ----------------------------------------------------------------------------------------------


def value_at(curve: Curve, position: float) -> float | None:
    """Returns the value of a curve at a position; None before its first."""
    found = None
    for place, value in zip(curve.positions, curve.values, strict=True):
        if place > position:
            break
        found = value
    return found


def first_position(curve: Curve, value: float) -> float | None:
    """Returns the first position at which a curve has at least this value; None if it never has."""
    return next((place for place, at in zip(curve.positions, curve.values, strict=True) if at >= value), None)


def area(curve: Curve, end: float, before: float) -> float:
    """Returns the mean of a curve over the positions from 0 to `end`.

    Args:
        curve: The curve.
        end: Last position, above 0.
        before: Value before the first position of the curve: that of the random policy.
    """
    places = [0.0, *(min(place, end) for place in curve.positions), end]
    values = [before, *curve.values]
    widths = [later - earlier for earlier, later in itertools.pairwise(places)]
    return math.fsum(width * value for width, value in zip(widths, values, strict=True)) / end


def mean_curve(curves: Sequence[Curve], positions: Sequence[float], before: float) -> list[float]:
    """Returns the interquartile mean of several curves at each position; `before` counts where one has not begun."""
    return [
        interquartile_mean([before if (value := value_at(curve, at)) is None else value for curve in curves])
        for at in positions
    ]


# --- reported scores ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Honesty:
    """Whether reported scores agree with fresh episodes."""

    runs: int
    within_two: int
    """Runs whose |z| is at most 2."""
    mean_z: float
    """Mean of z = (reported - fresh) / standard error of the difference."""


def z_score(reported: float, reported_error: float, fresh: float, fresh_error: float) -> float | None:
    """Returns how many standard errors of the difference a reported score is above the fresh one.

    Returns:
        None if both errors are 0, because there is no scale then.
    """
    error = math.hypot(reported_error, fresh_error)
    return (reported - fresh) / error if error > 0 else None


def honesty(z_scores: Sequence[float]) -> Honesty:
    """Summarizes z-scores; the mean of none is 0."""
    mean = math.fsum(z_scores) / len(z_scores) if z_scores else 0.0
    return Honesty(len(z_scores), sum(abs(z) <= 2 for z in z_scores), mean)
