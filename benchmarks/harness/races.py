"""Runs tournaments one after another on one embedded mesh, and appends a line to a file for each that has ended.

    races = [Race("docking", "truncation", seed, values), ...]
    found = run(races, folder, notify=print)                     # continues an earlier, interrupted call

The result of a race is stored in FOLDER/runs.jsonl under a digest of its specification: a changed race is a new race.
The mesh's home is FOLDER/home; a tournament that was interrupted continues with its agents.
"""

import contextlib
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podrace.cli import EXIT_FAILED, EXIT_INTERRUPTED, session
from podrace.cli.grid.axes import NAME_CHARACTERS, Cell, digest
from podrace.cli.grid.results import CellOutcome, Grid
from podrace.cli.grid.run import Runner
from podrace.cli.grid.screen import GridLines
from podrace.cli.grid.statistics import bootstrap_interval
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings
from podrace.cli.terminal.output import finite
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.specification import resolve as specification
from podrace.specification.files import to_values

CONFIDENCE = 0.9
RUNS = "runs.jsonl"
ROOT = Path(__file__).parents[2]

Run = Mapping[str, Any]
"""The result of a race; see `record`."""


@dataclass(frozen=True)
class Race:
    """One tournament of a comparison."""

    case: str
    """The subject; races are compared within a case."""
    contender: str
    """What is compared with other contenders of the case."""
    seed: int
    values: Mapping[str, Any]
    """The specification as read from TOML, without name and seed."""

    def cell(self) -> Cell:
        """Returns the tournament, named after its digest so that a later call finds it.

        Raises:
            InvalidArgument: The specification is invalid; the message names the race.
        """
        name = re.sub(r"[^A-Za-z0-9-]", "-", f"{self.case}-{self.contender}")[:NAME_CHARACTERS]
        values = {"name": name, "seed": self.seed}
        labels = {"case": self.case, "contender": self.contender, "seed": str(self.seed)}
        source = f"{self.case}/{self.contender}/{self.seed}"
        resolved = specification.resolve(specification.parse({**self.values, **values}, source=source))
        resolved.name = f"{resolved.name}-{digest(to_values(resolved))}"
        return Cell(labels, labels, resolved)


def run(races: Sequence[Race], folder: Path, *, notify: Callable[[str], None]) -> list[Run]:
    """Runs the races without a result, in order; after Ctrl-C, the same call continues.

    Args:
        races: All races of the comparison.
        folder: Folder of the results and the mesh.
        notify: Receives progress messages.

    Returns:
        The results of the races that have ended, including failures; for each race its last attempt.
    """
    cells = [race.cell() for race in races]
    folder.mkdir(parents=True, exist_ok=True)
    done = {run["name"]: run for run in read(folder / RUNS)}
    wanted = [cell for cell in cells if not done.get(cell.spec.name, {}).get("good")]
    if wanted:
        code = _run(wanted, folder, notify)
        if code == EXIT_INTERRUPTED:
            raise SystemExit(code)
    done = {run["name"]: run for run in read(folder / RUNS)}
    return [done[cell.spec.name] for cell in cells if cell.spec.name in done]


def _run(cells: Sequence[Cell], folder: Path, notify: Callable[[str], None]) -> int:
    # Pods find the tasks of the benchmarks in the same way as a user's simulator.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = Settings((folder / "home").resolve(), orchestrator="", debug=False, as_json=False)
    grid = Grid("races", (), tuple(cells), folder / "grid")

    async def command(interrupts: Interrupts) -> int:
        Folders.of(settings.home).make_home()
        screen = Lines(folder / RUNS, notify)
        async with session.open_client(settings, Use.TRAIN, interrupts, notify=notify) as client:
            with interrupts.polite() as stop:
                await Runner(settings, client, grid, screen, stop).run(parallel=1)
        return EXIT_INTERRUPTED if interrupts.count else 0 if grid.complete else EXIT_FAILED

    return session.run(command)


class Lines(GridLines):
    """Reports the progress of races, and writes a line for each that has ended."""

    def __init__(self, path: Path, notify: Callable[[str], None]) -> None:
        """Writes lines to the end of `path`."""
        super().__init__(notify)
        self._path = path

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        """Writes the line at once, so that it is kept whatever happens to the next race."""
        super().ended(cell, outcome)
        append(self._path, finite(record(cell, outcome)))


def record(cell: Cell, outcome: CellOutcome) -> dict[str, Any]:
    """Builds the line of a race."""
    return {
        **cell.labels,
        "seed": int(cell.labels["seed"]),
        "name": cell.spec.name,
        "good": outcome.good and not any("error" in report for report in outcome.reports.values()),
        "state": outcome.state,
        "reason": outcome.reason,
        "selection_score": outcome.score,
        "environment_steps": outcome.environment_steps,
        "training_seconds": outcome.training_seconds,
        **outcome.compute,
        "load": os.getloadavg()[0],
        "reports": {
            name: {key: value for key, value in report.items() if key != "traces"}
            for name, report in outcome.reports.items()
        },
        "curve": [[point.environment_steps, point.seconds, point.score] for point in outcome.curve],
    }


def append(path: Path, run: Run) -> None:
    """Appends a line; the line break comes first, to separate it from one that a crash has truncated."""
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(run, allow_nan=False))


def read(path: Path) -> list[Run]:
    """Reads the lines of a file, in order; skips lines that a crash has truncated."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(text))
    return found


# --- statistics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Statistics of a contender over its seeds."""

    median: float
    low: float
    """Lower end of the bootstrap interval of the median; with five seeds or fewer, the interval is the whole range."""
    high: float
    mean: float
    mean_low: float
    mean_high: float
    seeds: int


def summarize(values: Sequence[float]) -> Summary | None:
    """Computes median and mean with percentile bootstrap intervals over seeds; None without values."""
    if not values:
        return None
    low, high = bootstrap_interval(values, statistics.median, confidence=CONFIDENCE)
    mean_low, mean_high = bootstrap_interval(values, statistics.fmean, confidence=CONFIDENCE)
    return Summary(statistics.median(values), low, high, statistics.fmean(values), mean_low, mean_high, len(values))


def of(runs: Iterable[Run], case: str, contender: str) -> list[Run]:
    """Returns the successful runs of a contender."""
    return [run for run in runs if run["case"] == case and run["contender"] == contender and run["good"]]


def line(
    benchmark: str, case: str, metric: str, unit: str, own: Summary, against: str = "", other: Summary | None = None
) -> dict[str, object]:
    """Builds one result line, of a contender alone or compared with another."""
    found: dict[str, object] = {
        "benchmark": benchmark,
        "case": case,
        "metric": metric,
        "value": rounded(own.median),
        "unit": unit,
        "low": rounded(own.low),
        "high": rounded(own.high),
        "mean": rounded(own.mean),
        "mean_low": rounded(own.mean_low),
        "mean_high": rounded(own.mean_high),
        "seeds": own.seeds,
    }
    if other is not None:
        found |= {
            "against": against,
            "against_value": rounded(other.median),
            "against_low": rounded(other.low),
            "against_high": rounded(other.high),
            "ratio": rounded(own.median / other.median) if other.median else None,
            "interval_above": own.low > other.high,
            "mean_interval_above": own.mean_low > other.mean_high,
        }
    return found


def rounded(value: float) -> float:
    """Rounds to four digits."""
    return float(f"{value:.4g}")
