"""Decides which reports of a champion a page may ask for, and shapes their results. Pure."""

from collections.abc import Sequence
from typing import Any

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.client.account_charts import ACCOUNT, CHARTS, FRACTIONS, HABITS, MEASURES, columns_of, drawdown
from podrace.client.calls.tournaments import END_STATES
from podrace.client.scores import standard_error
from podrace.dashboard import views
from podrace.dashboard.downsampling import Value, edges, extremes, slots
from podrace.specification.resolve import REPORT_NAME
from podrace.tournament.v1.tournament_pb2 import ReportSpec, Tournament

MOST_REPORTS = 50
"""Reports of a tournament in an answer, at most."""
MOST_METRICS = 200
"""Metrics of an evaluation in an answer, at most."""
MOST_DAYS = 2000
"""Values of a trace in an answer, at most; of longer ones each part keeps its smallest and its largest value."""
MOST_LABELS = 10_000
"""Dates in an answer, at most; longer charts have none."""
STOCKS, SPLIT = "stocks", "split"
"""A simulator, and its option that selects the data."""


def choices(tournament: Tournament) -> list[dict[str, Any]]:
    """Returns the reports of the specification, each with the reason why it cannot be made now, or an empty one."""
    names = sorted(name for name in tournament.spec.reports if REPORT_NAME.fullmatch(name))
    return [
        {
            "name": name,
            "refused": refusal(tournament, name),
            "episodes": tournament.spec.reports[name].episodes,
            "options": views.text(", ".join(_options(tournament.spec.reports[name]))),
        }
        for name in names[:MOST_REPORTS]
    ]


def _options(report: ReportSpec) -> list[str]:
    return [f"{name} = {value}" for name, value in sorted(dict(report.options).items())]


def refusal(tournament: Tournament, name: str) -> str:
    """Returns why a report cannot be made now; empty if it can.

    While the tournament runs, the champion is evaluated on the data of its own evaluations only: a user who sees
    the result of a test may stop or change the tournament because of it, and then the test has selected an agent.
    """
    if name not in tournament.spec.reports:
        return f"the specification has no report {name}"
    if not tournament.champion_manifest_digest:
        return "the tournament has no candidate yet"
    if tournament.state in END_STATES or _on_evaluation_data(tournament, tournament.spec.reports[name]):
        return ""
    return "is made when the tournament has ended, so that no agent is selected by test data"


def _on_evaluation_data(tournament: Tournament, report: ReportSpec) -> bool:
    """Whether a report is made on the data of the evaluations: only of stocks it is known which option selects them."""
    evaluations, options = dict(tournament.spec.evaluation.options), dict(report.options)
    if tournament.spec.environment.id == STOCKS:
        return options.get(SPLIT) is not None and options.get(SPLIT) == evaluations.get(SPLIT)
    return options == evaluations


def report(evaluation: Evaluation) -> dict[str, Any]:
    """Shape of an evaluation: its score, its measures, and the charts of its account if it has one."""
    return {
        "mean_return": views.number(evaluation.mean_return),
        "standard_error": views.number(standard_error(evaluation) or 0.0),
        "episodes": evaluation.episodes,
        "evaluator_fault": views.text(evaluation.evaluator_fault),
        "comparison": _comparison(evaluation),
        "metrics": _metrics(evaluation),
        "charts": _charts(evaluation),
    }


def _comparison(evaluation: Evaluation) -> dict[str, Any]:
    """The measures of the account and those of the market."""
    columns = columns_of(evaluation)
    rows = [
        {
            "name": name.replace("_", " "),
            "percent": name in FRACTIONS,
            "values": [_value(evaluation.metrics.get(prefix + name)) for prefix in columns],
        }
        for name in MEASURES
    ]
    return {"columns": list(columns.values()), "rows": rows if columns else []}


def _metrics(evaluation: Evaluation) -> list[dict[str, Any]]:
    """All metrics that the comparison does not have."""
    compared = {prefix + name for prefix in columns_of(evaluation) for name in MEASURES}
    names = [name for name in HABITS if name in evaluation.metrics]
    names += sorted(set(evaluation.metrics) - compared - set(names))
    return [
        {
            "name": views.text(name.replace("_", " ")),
            "percent": name in FRACTIONS,
            "value": _value(evaluation.metrics[name]),
        }
        for name in names[:MOST_METRICS]
    ]


def _value(value: float | None) -> float | None:
    return None if value is None else views.number(value)


def _charts(evaluation: Evaluation) -> list[dict[str, Any]]:
    if ACCOUNT not in evaluation.traces:
        return []
    account = evaluation.traces[ACCOUNT]
    found = []
    for title, names in CHARTS.items():
        series = [
            (label, list(evaluation.traces[name].values))
            for name, label in names.items()
            if name in evaluation.traces and len(evaluation.traces[name].values) == len(account.values)
        ]
        if "drawdown" in names and not series:
            series = [(label, drawdown(account.values)) for label in names.values()]
        if series:
            found.append(_chart(title, series, account))
    return found


def _chart(title: str, series: Sequence[tuple[str, Sequence[float]]], account: Trace) -> dict[str, Any]:
    """Shape of a chart over the days of the account. `labels` has the date of each day."""
    days = len(account.values)
    places: Sequence[float] = range(days)
    limits = edges(0.0, float(max(1, days - 1)), MOST_DAYS // 2)
    reduced = days > MOST_DAYS
    lines = []
    for label, values in series:
        y: Sequence[Value] = extremes(places, values, limits) if reduced else values
        lines.append({"name": label, "algorithm": label, "y": [_value(value) for value in y]})
    labels = account.labels if len(account.labels) == days <= MOST_LABELS else []
    return {
        "title": title,
        "axis": "days",
        "x": slots(limits) if reduced else list(places),
        "series": lines,
        "labels": [views.text(one) for one in labels],
    }
