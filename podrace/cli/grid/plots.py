"""The picture of a grid: learning curves of its combinations, means over seeds. matplotlib is imported to draw."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podrace.cli import formats
from podrace.cli.grid_results import Combination
from podrace.cli.grid_statistics import Point, mean_curve
from podrace.cli.plots import FAMILY_COLORS
from podrace.errors import Unimplemented

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLOCK_UNITS = ((180.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (math.inf, 3600.0, "hours"))
"""Up to how many seconds a unit is used, its size in seconds, and its name."""
_LINE_STYLES = ("-", "--", ":", "-.")
"""The next one is taken each time the colours have been used up."""
_LARGEST_LEGEND = 32


def draw(path: Path, combinations: Sequence[Combination], *, title: str) -> None:
    """Draws the best score so far of every combination against environment steps and against wall clock.

    Lines are means over seeds, bands their 95 % bootstrap intervals. A combination is drawn from where all of its
    seeds have a score; those without one are left out.

    Args:
        path: PNG file.
        combinations: In the order of the legend.
        title: Of the picture.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    figure = _figure()
    by_steps, by_clock = figure.subplots(1, 2, sharey=True)
    size, unit = clock_unit(point.seconds for row in combinations for run in row.scored for point in run.curve)
    _draw_combinations(by_steps, combinations, lambda point: point.environment_steps)
    _draw_combinations(by_clock, combinations, lambda point: point.seconds / size)
    by_steps.set(title="against steps", xlabel="environment steps of all agents", ylabel="best score so far")
    by_clock.set(title="against wall clock", xlabel=f"wall clock since the first agent began ({unit})")
    figure.suptitle(f"{title}: mean over seeds, 95 % bootstrap interval")
    _finish(figure, by_steps, by_clock)
    # Written beside and renamed: whoever looks at the folder sees whole pictures.
    beside = path.with_suffix(".incoming.png")
    figure.savefig(beside, dpi=130)
    beside.replace(path)


def clock_unit(seconds: Iterable[float]) -> tuple[float, str]:
    """The unit that suits the longest of some times: its size in seconds and its name."""
    longest = max(seconds, default=0.0)
    return next((size, unit) for limit, size, unit in _CLOCK_UNITS if longest < limit)


def _draw_combinations(axes: "Axes", combinations: Sequence[Combination], position: Callable[[Point], float]) -> None:
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


def _figure() -> "Figure":
    """A figure that knows no window system, and no state that others share."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Unimplemented("matplotlib is not installed, so that nothing is drawn; install podrace[plots]") from None
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
