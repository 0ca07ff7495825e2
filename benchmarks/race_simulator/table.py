"""Runs races over seeds in several processes, and prints the results as tables."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.race_simulator.contenders import CONTROLS, known, specification_of
from benchmarks.race_simulator.families import FAMILIES
from benchmarks.race_simulator.race import Race, Result

METRICS = ("final", "area", "p10", "bias", "share")
CHUNK = 20
"""Races that a process runs at a time."""


@dataclass(frozen=True)
class Setting:
    """What to simulate."""

    families: Sequence[str]
    contenders: Sequence[str]
    pods: Sequence[int]
    replications: int
    first_seed: int
    episodes: int
    correlation: float
    common_episodes: bool = True
    overrides: Sequence[tuple[str, Any]] = ()
    """Keys and values that replace those of the strategies; controls keep theirs."""


@dataclass(frozen=True)
class Cell:
    """The races of one contender on one family with one number of pods, by seed."""

    family: str
    pods: int
    contender: str
    results: Sequence[Result]
    seconds: float
    """Processor time."""

    def values(self, name: str) -> np.ndarray:
        """Returns a field of all results."""
        return np.array([getattr(result, name) for result in self.results])

    def metrics(self) -> dict[str, Any]:
        """Returns means over seeds; `error` is the standard error of `final`, `p10` its lowest decile."""
        final = self.values("final")
        return {
            "final": float(final.mean()),
            "error": standard_error(final),
            "p10": float(np.quantile(final, 0.1)),
            "area": float(self.values("area").mean()),
            "quarters": [float(value) for value in np.median(self.values("quarters"), axis=0)],
            "bias": float(self.values("bias").mean()),
            "share": float(self.values("share").mean()),
            "agents": float(self.values("agents").mean()),
            "seconds": self.seconds,
        }


def standard_error(values: np.ndarray) -> float:
    """Returns the standard error of a mean; 0 for a single value."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def simulate(setting: Setting, processes: int) -> Iterator[Cell]:
    """Yields the cells in order: families, then numbers of pods, then contenders. The results depend on seeds only."""
    cells = [
        (family, pods, contender)
        for family in setting.families
        for pods in setting.pods
        for contender in setting.contenders
    ]
    seeds = range(setting.first_seed, setting.first_seed + setting.replications)
    chunks = [seeds[begin : begin + CHUNK] for begin in range(0, len(seeds), CHUNK)]
    if processes == 1:
        for cell in cells:
            yield _joined(cell, [run_chunk(setting, *cell, chunk) for chunk in chunks])
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = {cell: [pool.submit(run_chunk, setting, *cell, chunk) for chunk in chunks] for cell in cells}
        for cell, futures in jobs.items():
            yield _joined(cell, [future.result() for future in futures])


def run_chunk(setting: Setting, family: str, pods: int, name: str, seeds: Sequence[int]) -> tuple[list[Result], float]:
    """Runs the races of some seeds; returns the results and the processor time in seconds."""
    began = time.process_time()
    all_contenders = known()
    contender = all_contenders[name]
    overrides = setting.overrides if name not in CONTROLS else ()
    spec = specification_of(contender, pods, setting.episodes, overrides)
    common = setting.common_episodes
    races = [Race(contender, spec, FAMILIES[family], pods, seed, setting.correlation, common) for seed in seeds]
    results = [race.run() for race in races]
    return results, time.process_time() - began


def _joined(cell: tuple[str, int, str], parts: Sequence[tuple[list[Result], float]]) -> Cell:
    results = [result for part, _ in parts for result in part]
    return Cell(*cell, results, sum(seconds for _, seconds in parts))


def default_processes() -> int:
    """Returns the number of processors of this process."""
    return len(os.sched_getaffinity(0))


# --- output ------------------------------------------------------------------------------------------------------


def lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Yields one JSON object per cell."""
    for cell in cells:
        yield json.dumps(
            {"family": cell.family, "pods": cell.pods, "contender": cell.contender, **_rounded(cell.metrics())}
        )


def tables(cells: Sequence[Cell], against: str = "") -> Iterator[str]:
    """Yields Markdown tables: one per metric and number of pods, then paired differences to a contender."""
    found = {(cell.family, cell.pods, cell.contender): cell for cell in cells}
    families, pods, contenders = (list(dict.fromkeys(key[place] for key in found)) for place in range(3))
    for count in pods:
        values = {key: cell.metrics() for key, cell in found.items() if key[1] == count}
        for metric in METRICS:
            numbers = {(family, name): value[metric] for (family, _, name), value in values.items()}
            yield from _table(f"{count} pods, {metric}", families, contenders, numbers)
        worst = max(value["error"] for value in values.values())
        seconds = sum(value["seconds"] for value in values.values())
        yield f"largest standard error of `final`: {worst:.3f}; processor seconds: {seconds:.0f}"
        if against:
            yield from _differences(found, families, contenders, count, against)


def _differences(
    found: Mapping[tuple[str, int, str], Cell], families: Sequence[str], contenders: Sequence[str], pods: int, base: str
) -> Iterator[str]:
    """Yields differences of `final` at equal seeds, as mean ± standard error."""
    yield f"\n{pods} pods, `final` minus that of {base} at equal seeds\n"
    others = [name for name in contenders if name != base]
    yield _row("family", others)
    yield _row("---", ["---"] * len(others))
    for family in families:
        base_values = found[family, pods, base].values("final")
        gaps = [found[family, pods, name].values("final") - base_values for name in others]
        yield _row(family, [f"{gap.mean():+.3f} ± {standard_error(gap):.3f}" for gap in gaps])


def _table(
    title: str, families: Sequence[str], contenders: Sequence[str], values: Mapping[tuple[str, str], float]
) -> Iterator[str]:
    yield f"\n{title}\n"
    yield _row("family", contenders)
    yield _row("---", ["---"] * len(contenders))
    for family in families:
        yield _row(family, [f"{values[family, name]:.3f}" for name in contenders])
    means = [float(np.mean([values[family, name] for family in families])) for name in contenders]
    yield _row("mean", [f"{mean:.3f}" for mean in means])


def _row(first: str, others: Sequence[str]) -> str:
    return "| " + " | ".join((first, *others)) + " |"


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [float(f"{one:.5g}") for one in value] if isinstance(value, list) else float(f"{value:.5g}")
        for name, value in values.items()
    }
