"""Compares two policies episode by episode.

Two policies that are scored on the same n episodes differ by the mean of the differences d_i = x_i - y_i, whose
standard error is s_d / sqrt(n), with s_d the sample deviation of the differences. For returns of equal variance and
correlation r this is sqrt(1 - r) times the standard error of the difference of two independent scores: with r = 0.8 the
same precision takes a fifth of the episodes (common random numbers; Law, "Simulation Modeling and Analysis", 2015,
section 11.2).
"""

import math
from collections.abc import Sequence
from statistics import fmean

LEAST_CORRELATION = 0.2
"""Correlation of the episodes above which comparisons are paired. Below it pairing gains little, and the standard error
of few differences is less reliable than that of two scores."""
LEAST_EPISODES = 4
"""Number of common episodes from which a comparison can be paired."""
PRIOR_WEIGHT = 61.0
"""Weight of the prior that episodes do not correlate: that of one pair of policies with 64 common episodes."""
LARGEST_CORRELATION = 0.999
"""Limit of a single correlation, because the transformation of 1 is infinite."""


def paired_difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Returns the mean difference of two rows of returns over their common prefix, and its standard error.

    Args:
        one: At least two returns, in the order of the episodes.
        other: Likewise.
    """
    differences = [x - y for x, y in zip(one, other, strict=False)]
    mean = fmean(differences)
    variance = math.fsum((value - mean) ** 2 for value in differences) / (len(differences) - 1)
    return mean, math.sqrt(variance / len(differences))


class Returns:
    """The returns of one policy, prepared for correlations with those of many others.

    returns = Returns(candidate.episode_returns)
    """

    def __init__(self, values: Sequence[float]) -> None:
        """Prepares at least one return, in the order of the episodes."""
        self._values = list(values)
        self._centred = _centred(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def centred(self, length: int) -> tuple[list[float], float]:
        """Returns the first returns minus their mean, and the square root of the sum of their squares."""
        return self._centred if length == len(self._values) else _centred(self._values[:length])


def _centred(values: Sequence[float]) -> tuple[list[float], float]:
    mean = fmean(values)
    differences = [value - mean for value in values]
    return differences, math.sqrt(math.fsum(value * value for value in differences))


def correlation(one: Sequence[float] | Returns, other: Sequence[float] | Returns) -> float | None:
    """Returns Pearson's correlation of two rows of returns over their common prefix.

    None if fewer than LEAST_EPISODES are common, or if the returns of one policy are all equal.
    """
    length = min(len(one), len(other))
    if length < LEAST_EPISODES:
        return None
    x, x_norm = (one if isinstance(one, Returns) else Returns(one)).centred(length)
    y, y_norm = (other if isinstance(other, Returns) else Returns(other)).centred(length)
    spread = x_norm * y_norm
    if spread == 0.0 or not math.isfinite(spread):
        return None
    return max(-1.0, min(1.0, math.fsum(map(float.__mul__, x, y)) / spread))


class PooledCorrelation:
    """Correlation of many pairs of policies.

    Correlations r are averaged as z = atanh(r), whose variance is 1 / (n - 3) for n common episodes whatever r is
    (Fisher 1921), with weights n - 3. A prior of weight PRIOR_WEIGHT at r = 0 shrinks the result of few pairs:
        tanh(sum of (n - 3) z / (PRIOR_WEIGHT + sum of (n - 3)))
    Pairs that share a policy are not independent, so the result is less certain than its weight says.

    Attributes:
        pairs: Number of pairs so far.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self._weighted = self._weight = 0.0

    def add(self, one: Sequence[float] | Returns, other: Sequence[float] | Returns) -> None:
        """Adds a pair of policies; ignores it if it has no correlation."""
        found = correlation(one, other)
        if found is None:
            return
        weight = min(len(one), len(other)) - 3
        self.pairs += 1
        self._weight += weight
        self._weighted += weight * math.atanh(max(-LARGEST_CORRELATION, min(LARGEST_CORRELATION, found)))

    def copy(self) -> "PooledCorrelation":
        """Returns a copy, which can be continued separately."""
        other = PooledCorrelation()
        other.pairs, other._weighted, other._weight = self.pairs, self._weighted, self._weight
        return other

    @property
    def value(self) -> float:
        """The pooled correlation; 0 without pairs."""
        return math.tanh(self._weighted / (PRIOR_WEIGHT + self._weight))
