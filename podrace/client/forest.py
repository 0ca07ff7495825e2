"""Estimates the importance of inputs with a random forest, if scikit-learn is installed (`podrace[pb2]`). Pure.

The share of an input is the variance of its marginal prediction, which is the mean over all other inputs, as a share of
the variance of all predictions (functional analysis of variance, Hutter et al. 2014), times the share of the variance
of the outcomes that the forest predicts for observations that it was not trained on. Without the second factor, a
forest that has learned nothing but noise would report importance.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean, pvariance
from typing import Any

SMALLEST_SAMPLE = 20
"""Observations from which on a forest is trained."""
TREES = 100
LARGEST_SAMPLE = 200
"""Observations over which predictions are averaged, at most."""
MOST_VALUES = 16
"""Values of an input for which the marginal prediction is computed, at most."""


def forest_shares(columns: Mapping[str, Sequence[Any]], outcomes: Sequence[float]) -> dict[str, float]:
    """Returns the share of the variance of the outcomes that each input explains alone.

    The result is empty for too few observations, for outcomes that do not differ, and without scikit-learn. It is the
    same for the same arguments.

    Args:
        columns: Values of each input by name, one for each outcome. What is no number is replaced by its position among
            the different values.
        outcomes: The outcomes.
    """
    if len(outcomes) < SMALLEST_SAMPLE or not columns or pvariance(outcomes) <= 0:
        return {}
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        return {}
    names = sorted(columns)
    rows = [list(row) for row in zip(*(_numbers(columns[name]) for name in names), strict=True)]
    forest = RandomForestRegressor(TREES, min_samples_leaf=3, oob_score=True, random_state=0)
    forest.fit(rows, list(outcomes))
    predicted = min(max(float(forest.oob_score_), 0.0), 1.0)
    sample = _independent(rows)
    total = pvariance(forest.predict(sample).tolist())
    if total <= 0:
        return dict.fromkeys(names, 0.0)
    return {
        name: predicted * min(1.0, _marginal_variance(forest, sample, rows, position) / total)
        for position, name in enumerate(names)
    }


def _marginal_variance(
    forest: Any, sample: Sequence[Sequence[float]], rows: Sequence[Sequence[float]], position: int
) -> float:
    """Returns the variance of the mean prediction over the observed values of one input."""
    observed = sorted(row[position] for row in rows)
    step = max(1.0, len(observed) / MOST_VALUES)
    # Quantiles, so that each value counts as often as it was observed.
    counts = Counter(observed[int(index * step)] for index in range(int(len(observed) / step)))
    changed = [[*row[:position], value, *row[position + 1 :]] for value in counts for row in sample]
    predictions: list[float] = forest.predict(changed).tolist()
    means = [
        mean
        for index, count in enumerate(counts.values())
        for mean in [fmean(predictions[index * len(sample) : (index + 1) * len(sample)])] * count
    ]
    return pvariance(means)


def _independent(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns rows in which the observed values of each input were shuffled separately.

    Inputs are then independent, as the decomposition of the variance assumes.
    """
    random = Random(0)
    columns = [list(column) for column in zip(*rows, strict=True)]
    for column in columns:
        random.shuffle(column)
    return [list(row) for row in zip(*columns, strict=True)][:LARGEST_SAMPLE]


def _numbers(column: Sequence[Any]) -> list[float]:
    if all(isinstance(value, int | float) for value in column):
        return [float(value) for value in column]
    order = {text: float(place) for place, text in enumerate(sorted({repr(value) for value in column}))}
    return [order[repr(value)] for value in column]
