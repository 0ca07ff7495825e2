"""Builds what a chart of learning curves shows, from the points of a tournament. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from podrace.dashboard.downsampling import Value, bands, edges, extremes, held, slots
from podrace.dashboard.points import ChartAxis, SubmissionPoints

WIDEST = 1000
"""Buckets of a chart, at most."""
NARROWEST = 40
"""Buckets of a chart, at least, unless fewer are asked for."""
MOST_VALUES = 200_000
"""Values of one answer, at most; many curves get fewer buckets."""
MOST_CURVES = 1000
"""Curves of agents in one answer, at most: those with the highest last scores."""


class Curves(StrEnum):
    """Which curves a chart shows."""

    AGENTS = "agents"
    CHAMPION = "champion"
    FAMILIES = "families"


@dataclass(frozen=True)
class ChartRequest:
    """What the page asks for."""

    of: Curves = Curves.AGENTS
    axis: ChartAxis = ChartAxis.SECONDS
    width: int = 400
    """Buckets that the chart has room for, from 1 to `WIDEST`."""
    low: float | None = None
    """Where the visible range begins; None: at 0."""
    high: float | None = None
    """Where the visible range ends; None: at the furthest point."""


def chart(points: SubmissionPoints, request: ChartRequest) -> dict[str, Any]:
    """Returns the positions that all curves of a chart share, and the values of each curve at them.

    The JSON has `x`, and `series` with `name`, `algorithm` and `y`; a curve of a family has its 10 % and 90 %
    quantiles as `low` and `high`. `points` is the number of submissions and `left_out` that of omitted curves.
    """
    each, together = points.end(request.axis)
    furthest = together if request.of is Curves.CHAMPION else each
    low = request.low if request.low is not None else 0.0
    high = request.high if request.high is not None else furthest
    agents = _best(points) if request.of is Curves.AGENTS else []
    limits = edges(low, max(low, high), _buckets(request.width, len(agents)))
    build = {Curves.AGENTS: _agents, Curves.CHAMPION: _champion, Curves.FAMILIES: _families}[request.of]
    return {
        "axis": request.axis.value,
        "of": request.of.value,
        "x": slots(limits),
        "series": build(points, request.axis, limits),
        "points": points.count,
        "left_out": len(points.agents) - len(agents) if request.of is Curves.AGENTS else 0,
        "end": furthest,
    }


def chart_json(shown: Mapping[str, Any]) -> str:
    """Returns a chart as JSON; its numbers have six significant digits, which is more than a screen shows.

    The module `json` needs twice as long for numbers, and writes all digits.

    Args:
        shown: A chart of `chart`, possibly with further keys. All its numbers are finite.
    """
    columns = {"x": _numbers(shown["x"]), "series": f"[{','.join(_curve(one) for one in shown['series'])}]"}
    facts = {name: _json(value) for name, value in shown.items() if name not in columns}
    return _object(columns | facts)


def _curve(series: Mapping[str, Any]) -> str:
    return _object(
        {name: _numbers(value) if isinstance(value, list) else _json(value) for name, value in series.items()}
    )


def _object(members: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{_json(name)}:{value}' for name, value in members.items())}}}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _numbers(values: Iterable[Value]) -> str:
    return f"[{','.join(['null' if value is None else f'{value:.6g}' for value in values])}]"


def _buckets(width: int, curves: int) -> int:
    room = MOST_VALUES // (2 * max(curves, 1))
    return max(1, min(width, WIDEST, max(room, NARROWEST)))


def _best(points: SubmissionPoints) -> list[str]:
    """Returns the agents to show, in the order of their first submissions."""
    agents = points.agents
    if len(agents) <= MOST_CURVES:
        return list(agents)
    chosen = set(sorted(agents, key=lambda name: agents[name].scores[-1], reverse=True)[:MOST_CURVES])
    return [name for name in agents if name in chosen]


def _agents(points: SubmissionPoints, axis: ChartAxis, limits: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "algorithm": points.algorithm(name),
            "y": extremes(points.agents[name].along(axis), points.agents[name].scores, limits),
        }
        for name in _best(points)
    ]


def _champion(points: SubmissionPoints, axis: ChartAxis, limits: list[float]) -> list[dict[str, Any]]:
    if not len(points.champion):
        return []
    values = held(points.champion.along(axis), points.champion.scores, slots(limits))
    # A lead that was taken in the last bucket is shown, although no slot comes after it.
    values[-1] = held(points.champion.along(axis), points.champion.scores, [limits[-1]])[0]
    return [{"name": "champion", "algorithm": "", "y": values}]


def _families(points: SubmissionPoints, axis: ChartAxis, limits: list[float]) -> list[dict[str, Any]]:
    series = []
    for algorithm, columns in sorted(points.families().items()):
        low, middle, high = bands([(one.along(axis), one.scores) for one in columns], limits)
        series.append({"name": algorithm, "algorithm": algorithm, "y": middle, "low": low, "high": high})
    return series
