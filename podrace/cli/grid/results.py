"""Collects the results of a grid: the outcome of each cell, means over seeds, and the result files."""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from podrace.cli.grid.axes import SEED, Axis, Cell
from podrace.cli.grid.statistics import CONFIDENCE, RESAMPLES, BestScorePoint, Estimate, bootstrap_mean
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.output import finite
from podrace.cli.views import tables
from podrace.errors import FailedPrecondition

COMPLETED = "COMPLETED"
NOT_STARTED = "NOT_STARTED"
FAILED = "FAILED"
TABLE_COLUMNS = (
    "mean_score", "interval_low", "interval_high", "cells", "scored_cells", "mean_environment_steps",
    "mean_training_seconds", "mean_wall_seconds", "states",
)  # fmt: skip
"""Columns of table.csv after the axes."""


@dataclass(frozen=True)
class CellOutcome:
    """State and results of a cell."""

    state: str = NOT_STARTED
    """Name of the tournament's state, or NOT_STARTED."""
    reason: str = ""
    """Reason of the state, in one line."""
    tournament_id: str = ""
    score: float | None = None
    """Score of the champion."""
    standard_error: float | None = None
    """Standard error of that score over its episodes."""
    environment_steps: int = 0
    """Environment steps of all agents."""
    wall_seconds: float = 0.0
    """Running time of the tournament, without pauses."""
    training_seconds: float = 0.0
    """Running time since the first agent, without pauses."""
    curve: tuple[BestScorePoint, ...] = ()
    """Best score so far over the course of the tournament."""
    compute: Mapping[str, Any] = field(default_factory=dict)
    """What the compute was used for, in the shape of `show --json`."""
    reports: Mapping[str, Any] = field(default_factory=dict)
    """Reports about the champion from report.json, by name."""

    @property
    def good(self) -> bool:
        """Whether the tournament reached its objective and has a champion, so that the cell is part of the means."""
        return self.state == COMPLETED and self.score is not None


@dataclass(frozen=True)
class Combination:
    """Cells that differ only in their seed."""

    labels: Mapping[str, str]
    """Labels of all axes except the seed."""
    values: Mapping[str, Any]
    outcomes: tuple[CellOutcome, ...]

    @property
    def scored(self) -> list[CellOutcome]:
        """Outcomes with a champion."""
        return [outcome for outcome in self.outcomes if outcome.good]

    @property
    def estimate(self) -> Estimate | None:
        """Mean score of the champions; None if there is none."""
        scores = [outcome.score for outcome in self.scored if outcome.score is not None]
        return bootstrap_mean(scores) if scores else None

    @property
    def mean_environment_steps(self) -> float | None:
        """Mean over the outcomes with a champion."""
        return _mean([outcome.environment_steps for outcome in self.scored])

    @property
    def mean_training_seconds(self) -> float | None:
        """Mean over the outcomes with a champion."""
        return _mean([outcome.training_seconds for outcome in self.scored])

    @property
    def mean_wall_seconds(self) -> float | None:
        """Mean over the outcomes with a champion."""
        return _mean([outcome.wall_seconds for outcome in self.scored])

    @property
    def states(self) -> dict[str, int]:
        """Number of cells in each state."""
        return dict(Counter(outcome.state for outcome in self.outcomes))

    @property
    def title(self) -> str:
        """Labels for the legend of the plot."""
        return ", ".join(self.labels.values())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Grid:
    """A grid with the outcomes of its cells."""

    name: str
    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    folder: Path
    """Folder of its result files."""
    outcomes: dict[str, CellOutcome] = field(default_factory=dict)
    """Outcomes of the cells that were started, by the name of their specification."""

    def outcome(self, cell: Cell) -> CellOutcome:
        """Returns the outcome of a cell."""
        return self.outcomes.get(cell.spec.name, CellOutcome())

    @property
    def complete(self) -> bool:
        """Whether every cell has a champion."""
        return all(self.outcome(cell).good for cell in self.cells)

    def combinations(self) -> list[Combination]:
        """Returns the rows of the table in the order of the cells."""
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.combination, []).append(cell)
        return [
            Combination(
                {name: label for name, label in group[0].labels.items() if name != SEED},
                {name: value for name, value in group[0].values.items() if name != SEED},
                tuple(self.outcome(cell) for cell in group),
            )
            for group in groups.values()
        ]


# --- table -------------------------------------------------------------------------------------------------------


def render(grid: Grid) -> Table:
    """Returns the result table with one row per combination, the best mean in bold."""
    combinations = grid.combinations()
    names = list(combinations[0].labels)
    numbers = "return", f"{100 * CONFIDENCE:.0f} % interval", "runs", "steps", "time"
    table = tables.plain_table(*names, *numbers, "state", title=grid.name, right=numbers)
    best = max((row.estimate.mean for row in combinations if row.estimate), default=None)
    for row in combinations:
        estimate = row.estimate
        table.add_row(
            *row.labels.values(),
            *_numbers(row),
            Text(", ".join(f"{count} {state}" for state, count in row.states.items())),
            style="bold" if estimate and estimate.mean == best else "",
        )
    return table


def _numbers(row: Combination) -> list[str]:
    estimate, steps, seconds = row.estimate, row.mean_environment_steps, row.mean_training_seconds
    if estimate is None or steps is None or seconds is None:
        return [tables.NOTHING, tables.NOTHING, f"0 of {len(row.outcomes)}", tables.NOTHING, tables.NOTHING]
    known = estimate.low is not None and estimate.high is not None
    interval = tables.NOTHING
    if estimate.low is not None and estimate.high is not None:
        digits = formats.decimals(estimate.mean, (estimate.high - estimate.low) / 4)
        interval = f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}"
    mean = f"{estimate.mean:.{digits}f}" if known else formats.number(estimate.mean)
    runs = (
        str(len(row.outcomes)) if len(row.scored) == len(row.outcomes) else f"{len(row.scored)} of {len(row.outcomes)}"
    )
    return [mean, interval, runs, formats.count(steps), formats.duration(seconds)]


# --- files -------------------------------------------------------------------------------------------------------


def grid_values(grid: Grid) -> dict[str, Any]:
    """Shape of `grid --json` and results.json. Keys may be added but never renamed."""
    return {
        "grid": grid.name,
        "folder": str(grid.folder),
        "state": COMPLETED if grid.complete else "INCOMPLETE",
        "axes": [{"name": axis.name, "key": axis.key, "values": list(axis.values)} for axis in grid.axes],
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "combinations": [_combination_values(row) for row in grid.combinations()],
        "cells": [_cell_values(cell, grid.outcome(cell)) for cell in grid.cells],
    }


def _combination_values(row: Combination) -> dict[str, Any]:
    estimate = row.estimate
    return {
        "coordinates": dict(row.values),
        "mean_score": estimate.mean if estimate else None,
        "interval_low": estimate.low if estimate else None,
        "interval_high": estimate.high if estimate else None,
        "cells": len(row.outcomes),
        "scored_cells": len(row.scored),
        "mean_environment_steps": row.mean_environment_steps,
        "mean_training_seconds": row.mean_training_seconds,
        "mean_wall_seconds": row.mean_wall_seconds,
        "states": row.states,
    }


def _cell_values(cell: Cell, outcome: CellOutcome) -> dict[str, Any]:
    return {
        "coordinates": dict(cell.values),
        "tournament_id": outcome.tournament_id or None,
        "state": outcome.state,
        "reason": outcome.reason,
        "score": outcome.score,
        "standard_error": outcome.standard_error,
        "environment_steps": outcome.environment_steps,
        "training_seconds": outcome.training_seconds,
        "wall_seconds": outcome.wall_seconds,
        **outcome.compute,
        "reports": dict(outcome.reports),
        "curve": {
            "environment_steps": [point.environment_steps for point in outcome.curve],
            "seconds": [point.seconds for point in outcome.curve],
            "best_score": [point.score for point in outcome.curve],
        },
    }


def table_csv(grid: Grid) -> str:
    """Returns the result table as CSV, with unrounded numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    combinations = grid.combinations()
    writer.writerow(map(formats.cell, (*combinations[0].labels, *TABLE_COLUMNS)))
    for row in combinations:
        values = _combination_values(row) | {
            "states": "; ".join(f"{count} {state}" for state, count in row.states.items())
        }
        writer.writerow(map(formats.cell, (*row.labels.values(), *(values[name] for name in TABLE_COLUMNS))))
    return text.getvalue()


def write(grid: Grid) -> None:
    """Writes results.json and table.csv.

    Raises:
        FailedPrecondition: The folder is not writable.
    """
    values = json.dumps(finite(grid_values(grid)), indent=2, allow_nan=False) + "\n"
    try:
        grid.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(
            f"results cannot be written to {grid.folder}: {error.strerror}; name another folder with --output"
        ) from None
    for name, content in (("results.json", values), ("table.csv", table_csv(grid))):
        with whole_file(grid.folder / name, "--output") as place:
            place.write_text(content, encoding="utf-8")
