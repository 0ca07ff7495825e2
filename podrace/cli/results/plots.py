"""Draws learning curves and account values of a tournament with matplotlib, which is imported on first use."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podrace.checkpoint.v1.checkpoint_pb2 import Trace
from podrace.cli.results import backtest_html
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.palette import BASELINE_COLOR, CHAMPION_COLOR, FAMILY_COLORS, OTHER_FAMILIES_COLOR
from podrace.client.account_charts import CHARTS
from podrace.errors import Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLOCK_UNITS = ((180.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (math.inf, 3600.0, "hours"))
"""For each unit of time: the longest time for which it is used and its size, both in seconds, and its name."""


def draw_account_value(path: Path, *, champion: Trace, baseline: Trace | None, title: str) -> None:
    """Plots the account value of the champion over time, with the baseline that buys and holds all stocks.

    Args:
        path: PNG file.
        champion: Account values in money, with ISO dates as labels or none.
        baseline: Account values of the equal-weight pool; None if there are none.
        title: Title of the plot.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    figure = new_figure(10, 5)
    axes = figure.subplots()
    axes.plot(_positions(champion), champion.values, color=CHAMPION_COLOR, label="champion")
    if baseline is not None:
        axes.plot(_positions(baseline), baseline.values, color=BASELINE_COLOR, label="buy and hold, equal weight")
    axes.set(title=printable(title), xlabel="date" if champion.labels else "step", ylabel="account value (money)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _finish(figure, [axes], path)


def draw_backtest(path: Path, traces: Mapping[str, Trace], *, title: str) -> None:
    """Plots account values, drawdown, exposure and turnover below each other.

    Args:
        path: PNG file.
        traces: Traces of `simulators.stocks.report` with `account_value`; missing traces are not drawn.
        title: Title of the plot.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    panels = {
        "account value (money)": CHARTS["Account value"],
        "drawdown": CHARTS["Drawdown"],
        "share of the account": {"exposure": "exposure", "turnover": "turnover of a day"},
    }
    figure = new_figure(10, 9)
    all_axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=[2, 1, 1])
    for axes, (unit, names) in zip(all_axes, panels.items(), strict=True):
        for name, label in names.items():
            if name in traces:
                color = backtest_html.COLORS[name]
                axes.plot(_positions(traces[name]), traces[name].values, color=color, label=label)
        axes.set_ylabel(unit)
    low, high = (traces.get(f"random_{end}_value") for end in ("low", "high"))
    if low is not None and high is not None:
        all_axes[0].fill_between(_positions(low), low.values, high.values, color="#e69f00", alpha=0.2, linewidth=0)
    all_axes[0].set_title(printable(title))
    all_axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _finish(figure, list(all_axes), path)


def _positions(trace: Trace) -> Any:
    """Returns the labels as dates if they are dates, otherwise the step numbers."""
    steps = range(len(trace.values))
    try:
        return [date.fromisoformat(label) for label in trace.labels] or steps
    except ValueError:
        return steps


def draw_learning_curves(path: Path, tournament: Tournament, submissions: Sequence[Candidate]) -> None:
    """Plots the score of every submission, and the best score so far, over wall-clock time and environment steps.

    A family (all agents that descend from one fresh agent) shares a color. The points of an agent are connected,
    starting from its parent.

    Args:
        path: PNG file.
        tournament: The tournament with its specification.
        submissions: All candidates in order of arrival.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    figure = new_figure(12, 5)
    by_clock, by_steps = figure.subplots(1, 2, sharey=True)
    clock, unit = clock_positions(tournament, submissions)
    steps = {entry.candidate_id: float(entry.environment_steps) for entry in submissions}
    for axes, positions in ((by_clock, clock), (by_steps, steps)):
        _draw_families(axes, submissions, positions)
        _draw_best_so_far(axes, submissions, positions)
        axes.set_xlim(left=0.0)
        if tournament.spec.objective.HasField("target_return"):
            axes.axhline(tournament.spec.objective.target_return, color="black", linestyle=":", label="target return")
    by_clock.set(
        title="Return against wall clock",
        xlabel=f"wall clock since the start ({unit})",
        ylabel="mean episodic return",
    )
    by_steps.set(title="Return against steps", xlabel="environment steps of the policy, including its ancestors")
    by_steps.xaxis.set_major_formatter(_engineering())
    name = printable(f"{tournament.tournament_id} on {tournament.spec.environment.id}")
    figure.suptitle(f"{name}: one line per agent, one color per family")
    _finish(figure, [by_clock, by_steps], path)


def clock_positions(tournament: Tournament, submissions: Sequence[Candidate]) -> tuple[dict[str, float], str]:
    """Returns the time from the creation of the tournament to each submission, by candidate id, and the unit."""
    begin = tournament.create_time.ToNanoseconds()
    seconds = {entry.candidate_id: (entry.submit_time.ToNanoseconds() - begin) / 1e9 for entry in submissions}
    size, unit = clock_unit(seconds.values())
    return {name: value / size for name, value in seconds.items()}, unit


def clock_unit(seconds: Iterable[float]) -> tuple[float, str]:
    """Returns size in seconds and name of the unit that suits the longest of the given times."""
    longest = max(seconds, default=0.0)
    return next((size, unit) for limit, size, unit in _CLOCK_UNITS if longest < limit)


def families(submissions: Iterable[Candidate]) -> dict[str, str]:
    """Returns the first ancestor of every agent. Submissions are in order of arrival, so parents come first."""
    founders: dict[str, str] = {}
    for entry in submissions:
        parent = entry.parent_agent_ids[0] if entry.parent_agent_ids else entry.agent_id
        founders.setdefault(entry.agent_id, founders.get(parent, parent))
    return founders


def best_so_far(submissions: Sequence[Candidate], positions: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Returns the positions at which the best score rises, and the best scores from there on.

    Args:
        submissions: Candidates in any order.
        positions: Position of each candidate, by candidate id.
    """
    ordered = sorted(submissions, key=lambda entry: positions[entry.candidate_id])
    xs: list[float] = []
    ys: list[float] = []
    for entry in ordered:
        if not ys or entry.score > ys[-1]:
            xs.append(positions[entry.candidate_id])
            ys.append(entry.score)
    if ordered:
        xs.append(positions[ordered[-1].candidate_id])
        ys.append(ys[-1])
    return xs, ys


def _draw_families(axes: "Axes", submissions: Sequence[Candidate], positions: Mapping[str, float]) -> None:
    founders = families(submissions)
    colors = dict(zip(dict.fromkeys(founders.values()), FAMILY_COLORS, strict=False))
    tracks: dict[str, list[Candidate]] = {}
    for entry in submissions:
        if entry.agent_id not in tracks:
            parents = tracks.get(entry.parent_agent_ids[0], []) if entry.parent_agent_ids else []
            tracks[entry.agent_id] = parents[-1:]
        tracks[entry.agent_id].append(entry)
    for agent_id, track in tracks.items():
        color = colors.get(founders[agent_id], OTHER_FAMILIES_COLOR)
        xs = [positions[entry.candidate_id] for entry in track]
        ys = [entry.score for entry in track]
        axes.plot(xs, ys, marker=".", markersize=5, linewidth=0.7, alpha=0.7, color=color)


def _draw_best_so_far(axes: "Axes", submissions: Sequence[Candidate], positions: Mapping[str, float]) -> None:
    xs, ys = best_so_far(submissions, positions)
    axes.step(xs, ys, where="post", color="black", linewidth=1.5, label="best so far")


def _engineering() -> object:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """Returns a figure that uses neither a window system nor global state of matplotlib.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Unimplemented("matplotlib is not installed, so no plots are drawn; install podrace[plots]") from None
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _finish(figure: "Figure", all_axes: Iterable["Axes"], path: Path) -> None:
    for axes in all_axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    with whole_file(path) as place:
        figure.savefig(place, dpi=130)
