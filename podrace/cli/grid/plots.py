"""Plots the learning curves of a grid as means over seeds. Imports matplotlib on first use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podrace.cli.grid.results import Combination
from podrace.cli.grid.statistics import BestScorePoint, mean_curve
from podrace.cli.results.plots import clock_unit, new_figure
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.palette import FAMILY_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_STYLES = ("-", "--", ":", "-.")
"""Line styles; the next one is used after all colors have been used."""
_LARGEST_LEGEND = 32


def draw(path: Path, combinations: Sequence[Combination], *, title: str) -> None:
    """Plots the best score so far of every combination over environment steps and wall-clock time.

    Lines are means over seeds, bands are their 95 % bootstrap intervals. A curve starts where all of its seeds have a
    score. Seeds without a score are omitted.

    Args:
        path: PNG file.
        combinations: Combinations in the order of the legend.
        title: Title of the plot.

    Raises:
        FailedPrecondition: The file cannot be written.
        Unimplemented: matplotlib is not installed.
    """
    figure = new_figure(12, 5.5)
    by_steps, by_clock = figure.subplots(1, 2, sharey=True)
    size, unit = clock_unit(point.seconds for row in combinations for run in row.scored for point in run.curve)
    _draw_combinations(by_steps, combinations, lambda point: point.environment_steps)
    _draw_combinations(by_clock, combinations, lambda point: point.seconds / size)
    by_steps.set(title="against steps", xlabel="environment steps of all agents", ylabel="best score so far")
    by_clock.set(title="against wall clock", xlabel=f"wall clock since the first agent started ({unit})")
    figure.suptitle(f"{title}: mean over seeds, 95 % bootstrap interval")
    _finish(figure, by_steps, by_clock)
    with whole_file(path, "--output") as place:
        figure.savefig(place, dpi=130)


def _draw_combinations(
    axes: "Axes", combinations: Sequence[Combination], position: Callable[[BestScorePoint], float]
) -> None:
    for number, row in enumerate(combinations):
        color = FAMILY_COLORS[number % len(FAMILY_COLORS)]
        style = _LINE_STYLES[number // len(FAMILY_COLORS) % len(_LINE_STYLES)]
        curve = mean_curve([[(position(point), point.score) for point in run.curve] for run in row.scored if run.curve])
        if curve is None:
            continue
        means = [estimate.mean for estimate in curve.estimates]
        label = f"{row.title or 'all seeds'} ({formats.things(len(row.scored), 'run')})"
        axes.step(curve.positions, means, where="post", color=color, linestyle=style, linewidth=1.5, label=label)
        lows = [estimate.mean if estimate.low is None else estimate.low for estimate in curve.estimates]
        highs = [estimate.mean if estimate.high is None else estimate.high for estimate in curve.estimates]
        axes.fill_between(curve.positions, lows, highs, step="post", color=color, alpha=0.15, linewidth=0)


def _finish(figure: "Figure", by_steps: "Axes", by_clock: "Axes") -> None:
    from matplotlib.ticker import EngFormatter

    by_steps.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axes in (by_steps, by_clock):
        axes.set_xlim(left=0.0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = by_steps.get_legend_handles_labels()
    if handles:
        shown = handles[:_LARGEST_LEGEND], labels[:_LARGEST_LEGEND]
        figure.legend(*shown, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
