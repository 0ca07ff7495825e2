"""Builds a self-contained HTML page about a backtest, with tables and SVG charts. Pure."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from string import Template

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Trace
from podrace.cli.results.scoring import headline
from podrace.cli.terminal import formats
from podrace.client.account_charts import ACCOUNT, CHARTS, FRACTIONS, HABITS, MEASURES, columns_of
from podrace.printable import printable

ATTRIBUTION = "attribution:"
COLORS = {
    "account_value": "#0b6e4f",
    "index_value": "#0072b2",
    "equal_weight_value": "#9a9a9a",
    "random_mean_value": "#e69f00",
    "drawdown": "#d55e00",
    "exposure": "#0072b2",
    "turnover": "#cc79a7",
    "costs_paid": "#8c564b",
}
"""Color of each trace of `CHARTS`."""
WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_TOP, MARGIN_BOTTOM = 860, 240, 84, 12, 24
"""Size of a chart in pixels."""

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title><style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 900px; color: #222; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid #e4e4e4 }
th:first-child, td:first-child { text-align: left } th { font-weight: 600; color: #555 }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #666 } p.small { color: #666 }
</style></head><body>
<h1>$title</h1>
<p>$summary</p>
$body
<p class="small">Measures of values at the close of each day: cumulative = p<sub>n</sub> / p<sub>1</sub> - 1; annual =
(1 + cumulative)<sup>252 / n</sup> - 1, n being the number of days; volatility = standard deviation of daily returns
&times; &radic;252; Sharpe ratio = mean / standard deviation &times; &radic;252 with risk-free rate 0; drawdown =
min(p / highest p so far - 1); Calmar ratio = annual return / drawdown.</p>
</body></html>
""")


def backtest_page(title: str, evaluation: Evaluation, note: str = "") -> str:
    """Returns the page of an evaluation in the stock market.

    Args:
        title: Title of the page.
        evaluation: Evaluation with a trace `account_value`. Other traces and metrics of `simulators.stocks.report` are
            shown if they exist.
        note: A sentence below the summary.
    """
    traces = evaluation.traces
    dates = list(traces[ACCOUNT].labels)
    period = f" from {dates[0]} to {dates[-1]}, {formats.things(len(dates), 'day')}" if dates else ""
    parts = [f"<p>{_escaped(note)}.</p>" if note else "", _comparison(evaluation), _habits(evaluation.metrics)]
    for heading, names in CHARTS.items():
        drawn = [(label, COLORS[name], traces[name]) for name, label in names.items() if name in traces]
        if drawn:
            parts += [f"<h2>{heading}</h2>", line_chart(drawn, dates)]
    parts.append(_attribution(traces))
    return PAGE.substitute(
        title=_escaped(title),
        summary=_escaped(headline(evaluation) + period),
        body="\n".join(filter(None, parts)),
    )


def _escaped(text: str) -> str:
    """Escapes control characters and HTML."""
    return html.escape(printable(text))


def _comparison(evaluation: Evaluation) -> str:
    columns = columns_of(evaluation)
    rows = [
        (name.replace("_", " "), *(_number(name, evaluation.metrics.get(prefix + name)) for prefix in columns))
        for name in MEASURES
    ]
    return _table(("measure", *columns.values()), rows) if columns else ""


def _habits(metrics: Mapping[str, float]) -> str:
    rows = [(name.replace("_", " "), _number(name, metrics[name])) for name in HABITS if name in metrics]
    return "<h2>Trading</h2>\n" + _table(("measure", "champion"), rows) if rows else ""


def _attribution(traces: Mapping[str, Trace]) -> str:
    """Returns the profit of each stock, the largest first."""
    profits = {
        name.removeprefix(ATTRIBUTION): traces[name].values[-1] for name in traces if name.startswith(ATTRIBUTION)
    }
    rows = [(name, f"{money:,.0f}") for name, money in sorted(profits.items(), key=lambda item: -item[1])]
    if not rows:
        return ""
    rows.append(("total", f"{sum(profits.values()):,.0f}"))
    return "<h2>Profit of each stock after costs</h2>\n" + _table(("stock", "money"), rows)


def _number(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if name in FRACTIONS:
        return formats.percent(value)
    return f"{value:.2f}" if name.endswith("_ratio") else f"{value:,.0f}"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{_escaped(cell)}</{kind}>" for cell in cells) + "</tr>"

    return "\n".join(["<table>", line(header, "th"), *(line(row, "td") for row in rows), "</table>"])


def line_chart(series: Sequence[tuple[str, str, Trace]], labels: Sequence[str]) -> str:
    """Returns an SVG line chart of several series over the same positions.

    Args:
        series: Name in the legend, color and values of each series.
        labels: Labels of the positions; the first and the last are shown.
    """
    values = [value for _, _, trace in series for value in trace.values if math.isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    high = high if high > low else low + 1.0
    bottom = HEIGHT - MARGIN_BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - MARGIN_TOP)
        parts += [
            f'<line x1="{MARGIN_LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>',
            f'<text x="{MARGIN_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(low + share * (high - low))}</text>',
        ]
    for place, (name, color, trace) in enumerate(series):
        points = " ".join(_points(trace.values, low, high))
        y = MARGIN_TOP + 14 + 14 * place
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>',
            f'<text x="{MARGIN_LEFT + 8}" y="{y}" style="fill:{color}">{_escaped(name)}</text>',
        ]
    if labels:
        parts += [
            f'<text x="{MARGIN_LEFT}" y="{HEIGHT - 6}">{_escaped(labels[0])}</text>',
            f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{_escaped(labels[-1])}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def _points(values: Sequence[float], low: float, high: float) -> list[str]:
    across, bottom = (WIDTH - MARGIN_LEFT) / max(1, len(values) - 1), HEIGHT - MARGIN_BOTTOM
    return [
        f"{MARGIN_LEFT + place * across:.1f},{bottom - (value - low) / (high - low) * (bottom - MARGIN_TOP):.1f}"
        for place, value in enumerate(values)
        if math.isfinite(value)
    ]


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
