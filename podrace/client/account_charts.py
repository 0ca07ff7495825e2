"""Names what an evaluation in the stock market reports, and how pages group it. Pure."""

from collections.abc import Mapping, Sequence

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation

ACCOUNT = "account_value"
"""Trace of an evaluation that has an account."""
COLUMNS = {"": "champion", "index_": "index", "equal_weight_": "equal weight", "random_": "random traders"}
"""Column of each prefix of metric names."""
MEASURES = (
    "cumulative_return", "annual_return", "annual_volatility", "sharpe_ratio", "maximum_drawdown", "calmar_ratio",
)  # fmt: skip
HABITS = ("mean_turnover", "mean_exposure", "costs_paid", "fills")
FRACTIONS = frozenset((*MEASURES, "mean_turnover", "mean_exposure")) - {"sharpe_ratio", "calmar_ratio"}
"""Metrics that are shown in percent."""
CHARTS: Mapping[str, Mapping[str, str]] = {
    "Account value": {
        ACCOUNT: "champion",
        "index_value": "index",
        "equal_weight_value": "buy and hold, equal weight",
        "random_mean_value": "random traders, mean",
    },
    "Drawdown": {"drawdown": "champion"},
    "Value of the shares / account value": {"exposure": "champion"},
    "Value traded on a day / account value": {"turnover": "champion"},
    "Costs paid so far": {"costs_paid": "champion"},
}
"""Charts: title, and for each trace its name in the legend."""


def columns_of(evaluation: Evaluation) -> dict[str, str]:
    """Returns the prefixes for which an evaluation has measures, with the names of their columns."""
    return {prefix: name for prefix, name in COLUMNS.items() if prefix + MEASURES[0] in evaluation.metrics}


def drawdown(values: Sequence[float]) -> list[float]:
    """Returns the loss of each value against the highest before it, as a fraction of it: 0, or negative."""
    found, highest = [], 0.0
    for value in values:
        highest = max(highest, value)
        found.append(value / highest - 1.0 if highest > 0.0 else 0.0)
    return found
