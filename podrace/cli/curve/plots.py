"""Plots learning curves as means with a band of one standard deviation. Imports matplotlib on first use."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podrace.cli.results.plots import clock_unit, new_figure
from podrace.cli.terminal import formats
from podrace.cli.terminal.palette import FAMILY_COLORS, OTHER_FAMILIES_COLOR
from podrace.client.curve.points import CHAMPION, CurvePoint, curves
from podrace.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WALL_CLOCK = "wall-clock"
STEPS = "steps"
SUFFIXES = (".png", ".svg")
_MOST_BANDS = len(FAMILY_COLORS)
"""With more curves than this, no bands are drawn, because they would hide each other."""
_LARGEST_LEGEND = 32
_PANEL_CHARACTERS = 60
"""Number of characters of the title that fit above one panel."""


def draw(path: Path, points: Sequence[CurvePoint], *, environments: Mapping[str, str], by: Sequence[str]) -> None:
    """Plots curves over wall-clock time, over environment steps, or both side by side.

    Args:
        path: PNG or SVG file, chosen by the suffix.
        points: Points, in order within each curve.
        environments: Environment id of each tournament.
        by: `wall-clock`, `steps`, or both.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    figure = new_figure(7 if len(by) == 1 else 12, 5.5)
    all_axes = figure.subplots(1, len(by), sharey=True, squeeze=False)[0]
    size, unit = clock_unit(point.seconds for point in points)
    for axes, against in zip(all_axes, by, strict=True):
        if against == WALL_CLOCK:
            _draw_curves(axes, points, lambda point: point.seconds / size)
            axes.set(title="Return against wall clock", xlabel=f"running time of the tournament ({unit})")
        else:
            _draw_curves(axes, points, lambda point: float(point.environment_steps))
            axes.set(title="Return against steps", xlabel=_steps_label(points))
            axes.xaxis.set_major_formatter(lambda steps, _: formats.count(steps))
        axes.set_xlim(left=0.0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_ylabel("episodic return")
    figure.suptitle(title(points, environments, panels=len(by)))
    handles, labels = all_axes[0].get_legend_handles_labels()
    if handles:
        shown = handles[:_LARGEST_LEGEND], labels[:_LARGEST_LEGEND]
        figure.legend(*shown, loc="outside lower center", ncols=min(3, len(handles)), frameon=False)
    figure.savefig(path, dpi=130)


def _draw_curves(axes: "Axes", points: Sequence[CurvePoint], position: Callable[[CurvePoint], float]) -> None:
    found = curves(points)
    names = {tournament_id for tournament_id, _ in found}
    for number, ((tournament_id, who), curve) in enumerate(found.items()):
        color = FAMILY_COLORS[number] if number < len(FAMILY_COLORS) else OTHER_FAMILIES_COLOR
        label = formats.short(who, tournament_id) if len(names) == 1 else _label(tournament_id, who)
        positions = [position(point) for point in curve]
        means = [point.mean for point in curve]
        width = 1.8 if who == CHAMPION else 1.0
        axes.plot(positions, means, marker=".", color=color, linewidth=width, label=printable(label))
        if len(found) <= _MOST_BANDS:
            # Points without a standard deviation leave a gap in the band.
            widths = [math.nan if (one := point.standard_deviation) is None else one for point in curve]
            lows = [mean - width for mean, width in zip(means, widths, strict=True)]
            highs = [mean + width for mean, width in zip(means, widths, strict=True)]
            axes.fill_between(positions, lows, highs, color=color, alpha=0.15, linewidth=0)


def _label(tournament_id: str, who: str) -> str:
    return tournament_id if who == CHAMPION else who


def _steps_label(points: Sequence[CurvePoint]) -> str:
    champions = {point.snapshot.champion for point in points}
    if champions == {True}:
        return "environment steps of all agents"
    if champions == {False}:
        return "environment steps of the policy, including its ancestors"
    return "environment steps (champion: of all agents; agent: of its policy)"


def title(points: Sequence[CurvePoint], environments: Mapping[str, str], *, panels: int) -> str:
    """Returns the title, wrapped to the width of the panels."""
    names = list(dict.fromkeys(point.snapshot.tournament_id for point in points))
    where = ", ".join(dict.fromkeys(environments[name] for name in names))
    episodes = sorted({point.evaluation.episodes for point in points})
    over = formats.things(episodes[0], "episode") if len(episodes) == 1 else "episodes"
    subject = names[0] if len(names) == 1 else f"{len(names)} tournaments"
    known = any(point.standard_deviation is not None for point in points)
    band = "band of one standard deviation" if known else "standard deviation unknown"
    line = printable(f"{subject} on {where}: mean over {over}, {band}")
    return textwrap.fill(line, _PANEL_CHARACTERS * panels, break_long_words=False, break_on_hyphens=False)
