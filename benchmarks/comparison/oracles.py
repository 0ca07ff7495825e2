"""Reads and updates the returns of the random policy and of the oracle of each task, by which returns are normalized.

The file has one entry per task, with the source of both values. An oracle is the best policy that is known: the highest
return of a run on fresh episodes. A better row of the CSV file replaces it only on request, because normalized returns
then change.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.comparison.rows import Row

PATH = Path(__file__).parent / "oracles.json"


@dataclass(frozen=True)
class Scale:
    """The ends of the normalized scale of a task."""

    random: float
    random_source: str
    oracle: float
    oracle_source: str


def read(path: Path = PATH) -> dict[str, Scale]:
    """Reads the scales by task."""
    return {task: Scale(**values) for task, values in json.loads(path.read_text(encoding="utf-8")).items()}


def improved(scales: Mapping[str, Scale], rows: Iterable[Row]) -> dict[str, Scale]:
    """Returns the scales with the best final return of the rows where it is above the oracle's."""
    found = dict(scales)
    for row in rows:
        scale = found.get(row.task)
        if scale is not None and row.good and row.final_return is not None and row.final_return > scale.oracle:
            run = f"{row.contender}, seed {row.seed}, {row.conditions}, {row.wall_seconds:.0f} s"
            source = f"{run}, {row.version}, {row.date}"
            found[row.task] = Scale(scale.random, scale.random_source, round(row.final_return, 4), source)
    return found


def write(scales: Mapping[str, Scale], path: Path = PATH) -> None:
    """Writes the scales."""
    text = json.dumps({task: asdict(scale) for task, scale in scales.items()}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
