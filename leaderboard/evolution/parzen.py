"""Models which hyperparameters are good by two densities: a tree-structured Parzen estimator (TPE). Pure.

    good, bad = split(rows, least, share)              # rows: the best first
    row = most_promising(good, bad, dimensions, random)

Bergstra, Bardenet, Bengio and Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, section 4, in the form
of Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018, arXiv
1807.01774, section 3.2 and algorithm 2: one density l over all hyperparameters of the good rows and one, g, of the bad
rows. Rows are drawn from l with wider kernels, and that with the largest l / g is chosen, which maximizes the expected
improvement.

A density is the mean of one kernel for each row, which is a product over the hyperparameters:
    number x from 0 to 1       normal density around the row's value, truncated to 0 to 1
    category c of C            1 - w if it is the row's, else w / (C - 1) (Aitchison and Aitken, Biometrika 63, 1976)
    no value in the row        uniform: a hyperparameter that is not active in an agent gives no information
Widths follow the normal reference rule of the paper's implementation, 1.06 s n^(-1 / (4 + d)), for n rows with d values
of standard deviation s. Where s^2 is half the mean squared distance of two values, as of numbers, the distance of two
different categories is 1.

No library is used. The densities are functions of the rows alone, and every draw is made with a random stream that is
the same in every version of Python. The next value of Optuna's TPE depends on the order in which it is given the trials
and, for the same order and seed, on its release: 4.2 and 5.0 differ. A tournament could then not be replayed after an
upgrade.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import NormalDist, pvariance

from leaderboard.seeding import draw_one, happens

Row = tuple[float | None, ...]
"""The values of an agent: positions from 0 to 1 and indices of categories, None where it has none."""

CANDIDATES = 64
"""Rows that are drawn from the good density."""
WIDENING = 3.0
"""Factor of the widths when rows are drawn, so that they are not only where rows are already."""
SMALLEST_WIDTH = 1e-3
SMALLEST_DENSITY = 1e-32
DIGITS = 9
"""Positions and ratios are rounded: the last digits of an exponential may differ between machines."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Density:
    """The density of some rows."""

    rows: Sequence[Row]
    """At least one."""
    categories: Sequence[int]
    """Number of categories of each hyperparameter; 0 for a number."""

    @cached_property
    def widths(self) -> list[float]:
        """Width of the kernels of each hyperparameter."""
        return [self._width(dimension) for dimension in range(len(self.categories))]

    def at(self, row: Row) -> float:
        """Returns the density at a row that has all values."""
        return math.fsum(math.prod(map(self._kernel, range(len(row)), own, row)) for own in self.rows) / len(self.rows)

    def draw(self, random: Random) -> Row:
        """Draws a row from the density with wider kernels."""
        own = draw_one(random, self.rows)
        return tuple(self._drawn(dimension, own[dimension], random) for dimension in range(len(self.categories)))

    def _width(self, dimension: int) -> float:
        values = [value for row in self.rows if (value := row[dimension]) is not None]
        if not values:
            return SMALLEST_WIDTH
        count = self.categories[dimension]
        if count:
            shares = (values.count(category) / len(values) for category in range(count))
            variance = (1 - math.fsum(share * share for share in shares)) / 2
        else:
            variance = pvariance(values)
        width = 1.06 * math.sqrt(variance) * len(values) ** (-1 / (4 + len(self.categories)))
        return self._limited(dimension, max(SMALLEST_WIDTH, width))

    def _limited(self, dimension: int, width: float) -> float:
        """Limits a width of categories: with the largest one, all have the same probability."""
        count = self.categories[dimension]
        return min(width, (count - 1) / count) if count else width

    def _kernel(self, dimension: int, own: float | None, value: float | None) -> float:
        count, width = self.categories[dimension], self.widths[dimension]
        if own is None or value is None:
            return 1 / count if count else 1.0
        if count:
            return 1 - width if value == own else width / (count - 1)
        return math.exp(-(((value - own) / width) ** 2) / 2) / self._areas[dimension, own]

    @cached_property
    def _areas(self) -> dict[tuple[int, float], float]:
        """By hyperparameter and value: the integral of exp(-((x - value) / width)^2 / 2) over x from 0 to 1."""
        found = {}
        for dimension, width in enumerate(self.widths):
            scale = width * math.sqrt(2 * math.pi)
            for own in {value for row in self.rows if (value := row[dimension]) is not None}:
                inside = _NORMAL.cdf((1 - own) / width) - _NORMAL.cdf(-own / width)
                found[dimension, own] = scale * inside
        return found

    def _drawn(self, dimension: int, own: float | None, random: Random) -> float:
        count, width = self.categories[dimension], self._limited(dimension, WIDENING * self.widths[dimension])
        point = random.random()
        if count:
            if own is not None and not happens(random, width):
                return own
            others = [category for category in range(count) if category != own]
            return float(others[int(point * len(others))]) if others else 0.0
        if own is None:
            return round(point, DIGITS)
        low, high = _NORMAL.cdf(-own / width), _NORMAL.cdf((1 - own) / width)
        quantile = _NORMAL.inv_cdf(min(max(low + point * (high - low), 1e-16), 1 - 1e-16))
        return round(min(max(own + width * quantile, 0.0), 1.0), DIGITS)


def split(rows: Sequence[Row], least: int, share: float) -> tuple[Sequence[Row], Sequence[Row]]:
    """Returns the good and the bad rows (equation 3). They overlap if there are fewer than twice the least number.

    Args:
        rows: The best first.
        least: Least number of each.
        share: Share of the good ones.
    """
    good = max(least, int(share * len(rows) + 1e-9))
    bad = max(least, len(rows) - good)
    return rows[:good], rows[max(0, len(rows) - bad) :]


def most_promising(good: Sequence[Row], bad: Sequence[Row], categories: Sequence[int], random: Random) -> Row:
    """Returns the drawn row with the largest ratio of the densities; the first among equals.

    Args:
        good: Rows of the good agents, at least one.
        bad: Rows of the bad agents, at least one.
        categories: Number of categories of each hyperparameter; 0 for a number.
        random: Random stream.
    """
    better, worse = Density(good, categories), Density(bad, categories)

    def ratio(row: Row) -> float:
        return math.log(max(SMALLEST_DENSITY, better.at(row))) - math.log(max(SMALLEST_DENSITY, worse.at(row)))

    drawn = [better.draw(random) for _ in range(CANDIDATES)]
    return max(drawn, key=lambda row: round(ratio(row), DIGITS))
