"""Reads and writes the CSV file with one row per finished run, and the curve file of each run.

Rows are appended as soon as a run has finished and are never changed. The last row of a run counts, so a failed run
that is repeated replaces its row. Fields that do not apply are empty.
"""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

COMPLETED, FAILED = "completed", "failed"


@dataclass(frozen=True)
class Key:
    """What identifies a run; equal keys are the same measurement, on whatever machine."""

    conditions: str
    task: str
    contender: str
    seed: int
    settings: str
    """Digest of everything that the run was asked to do, so that a changed run is another run."""


@dataclass(frozen=True)
class Row:
    """One finished run. Returns are means over fresh episodes; errors are standard errors."""

    conditions: str
    task: str
    contender: str
    seed: int
    settings: str
    version: str
    """Git commit of the code; `+` at the end: with uncommitted changes."""
    machine: str
    """Processor and number of cores."""
    date: str
    """UTC, when the run began."""
    load: float
    """Load average of the last minute before the run began."""
    budget_seconds: float
    wall_seconds: float
    """Seconds that the contender used."""
    environment_steps: int
    """Training steps of all agents or trials."""
    agents: int
    """Agents or trials that were started."""
    state: str
    """`completed` or `failed`."""
    reason: str
    """Why it failed."""
    final_return: float | None = None
    final_error: float | None = None
    final_episodes: int | None = None
    reported_score: float | None = None
    """What the contender itself reports about the policy."""
    reported_error: float | None = None
    z: float | None = None
    """Reported minus final, in standard errors of the difference."""
    share_behind: float | None = None
    """Share of all steps that the final policy was trained on."""
    evaluation_share: float | None = None
    """Share of the time of training pods in which an evaluation ran."""
    stopped_agents: int | None = None
    """Agents that the strategy stopped early."""
    correlation: float | None = None
    """Correlation of the returns of different agents on the same episodes."""
    backtest_return: float | None = None
    """Stocks only: return on fresh windows of the backtest split."""
    curve: str = ""
    """Curve file, relative to the CSV file."""

    @property
    def key(self) -> Key:
        """What identifies the run."""
        return Key(self.conditions, self.task, self.contender, self.seed, self.settings)

    @property
    def good(self) -> bool:
        """Whether the run completed with a policy that was evaluated."""
        return self.state == COMPLETED and self.final_return is not None


@dataclass(frozen=True)
class Point:
    """One point of an anytime curve: the policy that the contender would have delivered, on fresh episodes."""

    seconds: float
    environment_steps: int
    mean: float
    standard_error: float
    episodes: int


COLUMNS = tuple(field.name for field in fields(Row))
_WHOLE = {"seed", "environment_steps", "agents", "stopped_agents", "final_episodes", "episodes"}
_TEXT = {
    "conditions", "task", "contender", "settings", "version", "machine", "date", "state", "reason", "curve",
}  # fmt: skip


def read(path: Path) -> list[Row]:
    """Reads the rows of a file, in order; a missing file has none.

    Raises:
        SystemExit: The file has other columns, or a cell cannot be read.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is None or set(reader.fieldnames) != set(COLUMNS):
            raise SystemExit(f"{path}: expected the columns {', '.join(COLUMNS)}")
        rows = []
        for number, cells in enumerate(reader, start=2):
            try:
                rows.append(_row(cells))
            except (ValueError, TypeError) as error:
                raise SystemExit(f"{path}, line {number}: {error}; repair or remove the line") from None
    return rows


def append(path: Path, row: Row) -> None:
    """Appends a row and makes it durable; writes the header first into a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or path.stat().st_size == 0
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if new:
        writer.writeheader()
    writer.writerow({name: _cell(value) for name, value in asdict(row).items()})
    with path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def latest(rows: Iterable[Row]) -> dict[Key, Row]:
    """Returns the last row of each run."""
    return {row.key: row for row in rows}


def write_curve(path: Path, points: Sequence[Point]) -> None:
    """Writes a curve file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Point)])
    writer.writerows([_cell(value) for value in asdict(point).values()] for point in points)
    path.write_text(text.getvalue(), encoding="utf-8")


def read_curve(path: Path) -> list[Point]:
    """Reads a curve file."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Point(**{name: _number(name, text) for name, text in cells.items()})  # type: ignore[arg-type]
            for cells in csv.DictReader(file)
        ]


def _row(cells: Mapping[str, str]) -> Row:
    return Row(**{name: _value(name, text) for name, text in cells.items()})  # type: ignore[arg-type]


def _value(name: str, text: str) -> str | float | int | None:
    if name in _TEXT:
        return text
    return _number(name, text) if text else None


def _number(name: str, text: str) -> float | int:
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        raise ValueError(f"{name} = {text!r} is not a number") from None


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())
