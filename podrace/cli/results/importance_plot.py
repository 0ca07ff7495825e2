"""Plots the scores of trials against the values of each hyperparameter with matplotlib, imported on first use."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podrace.cli.results.plots import new_figure
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.palette import BASELINE_COLOR, CHAMPION_COLOR
from podrace.client.importance import AlgorithmImportance, HyperparameterImportance
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import SCALE_LOG, TournamentSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4
MOST_PANELS = 16
"""Panels of a figure, at most: the most important hyperparameters of each algorithm in turn."""


def draw_importance(path: Path, spec: TournamentSpec, found: Sequence[AlgorithmImportance], *, title: str) -> bool:
    """Plots one panel for each hyperparameter: a point for each trial, and the mean of each slice with its error.

    Args:
        path: PNG file.
        spec: Resolved specification, for the scales.
        found: Importance by algorithm.
        title: Title of the figure.

    Returns:
        Whether there was anything to draw; otherwise no file is written.

    Raises:
        Unimplemented: matplotlib is not installed.
    """
    panels = _panels(found)
    if not panels:
        return False
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(3.5 * columns, 3.0 * rows + 0.5)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            algorithm, entry = panels[place]
            declared = spec.algorithms[algorithm].hyperparameters
            logarithmic = entry.name in declared and declared[entry.name].scale == SCALE_LOG
            _draw_panel(axes, algorithm if len(found) > 1 else "", entry, logarithmic=logarithmic)
        else:
            axes.set_axis_off()
    for row in grid:
        row[0].set_ylabel("highest estimate of the trial")
    figure.suptitle(printable(title))
    with whole_file(path) as place_of_file:
        figure.savefig(place_of_file, dpi=130)
    return True


def _panels(found: Sequence[AlgorithmImportance]) -> list[tuple[str, HyperparameterImportance]]:
    own = max(1, MOST_PANELS // max(1, len(found)))
    return [(one.algorithm, entry) for one in found for entry in one.hyperparameters[:own]][:MOST_PANELS]


def _draw_panel(axes: "Axes", algorithm: str, entry: HyperparameterImportance, *, logarithmic: bool) -> None:
    positions = _positions(entry)
    axes.scatter(
        [positions[repr(value)] for value, _ in entry.points],
        [score for _, score in entry.points],
        s=12,
        alpha=0.5,
        color=BASELINE_COLOR,
        linewidths=0,
    )
    for part in entry.slices:
        places = [positions[repr(value)] for value in part.values]
        middle = places[len(places) // 2]
        axes.plot([places[0], places[-1]], [part.mean, part.mean], color=CHAMPION_COLOR)
        axes.errorbar([middle], [part.mean], [part.standard_error or 0.0], color=CHAMPION_COLOR, marker="o", capsize=3)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value, _ in entry.points):
        if logarithmic and min(positions.values()) > 0:
            axes.set_xscale("log")
    else:
        labels = {place: part.label for part in entry.slices for place in [positions[repr(part.values[0])]]}
        axes.set_xticks(list(labels), list(map(printable, labels.values())))
    share = "" if not entry.rank_share else f": {formats.percent(entry.rank_share)}"
    axes.set_title(printable(f"{algorithm} {entry.name}{share}".strip()), fontsize="medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _positions(entry: HyperparameterImportance) -> Mapping[str, float]:
    """Returns the place of each value on the axis: the number itself, or its order."""
    values = [value for part in entry.slices for value in part.values]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return {repr(value): float(value) for value in values}
    return {repr(value): float(place) for place, value in enumerate(values)}
