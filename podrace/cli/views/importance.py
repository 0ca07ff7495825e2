"""Shows the importance of hyperparameters and the scores by slices, as text or as JSON. Pure."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from podrace.cli.terminal import formats
from podrace.cli.views import tables
from podrace.client.importance import SMALLEST_SAMPLE, AlgorithmImportance, HyperparameterImportance, Slice

NOTE = "share: of the variance of the scores of trials, explained by this hyperparameter alone"
CHANCE_NOTE = "by chance: probability of such a share without any effect; of many hyperparameters, some are below 0.05"
STEPS_NOTE = "a large share of the environment steps: scores differ because some trials were trained longer than others"


def as_text(found: Sequence[AlgorithmImportance]) -> RenderableType:
    """Returns two tables for each algorithm: the shares, and the mean scores of the slices."""
    parts: list[RenderableType] = []
    for algorithm in found:
        entries = _entries(algorithm)
        heading = f"{algorithm.algorithm}: {formats.things(algorithm.trials, 'trial')}"
        parts.append(Text(heading, style="bold"))
        if not algorithm.hyperparameters:
            parts += [Text("no hyperparameter has different values in different trials"), Text()]
            continue
        if algorithm.trials < SMALLEST_SAMPLE:
            parts.append(Text(f"shares need {SMALLEST_SAMPLE} trials", style="dim"))
        parts += [_shares_table(entries), Text(NOTE, style="dim"), Text(CHANCE_NOTE, style="dim")]
        if algorithm.steps:
            parts.append(Text(STEPS_NOTE, style="dim"))
        parts += [Text(), _slices_table(entries), Text()]
    return Group(*parts[:-1])


def as_json(found: Sequence[AlgorithmImportance]) -> list[dict[str, Any]]:
    """Shape of `show --importance`, and of the key `importance` in report.json."""
    return [
        {
            "algorithm": algorithm.algorithm,
            "trials": algorithm.trials,
            "hyperparameters": [_values(entry) for entry in algorithm.hyperparameters],
            "environment_steps": _values(algorithm.steps) if algorithm.steps else None,
        }
        for algorithm in found
    ]


def _values(entry: HyperparameterImportance) -> dict[str, Any]:
    return {
        "name": entry.name,
        "trials": entry.trials,
        "share": entry.share,
        "p_value": entry.p_value,
        "forest_share": entry.forest_share,
        "slices": [_slice_values(part) for part in entry.slices],
    }


def _slice_values(part: Slice) -> dict[str, Any]:
    first, last = part.values[0], part.values[-1]
    return {
        "low": first,
        "high": last,
        "trials": part.trials,
        "mean_score": part.mean,
        "standard_error": part.standard_error,
    }


def _entries(algorithm: AlgorithmImportance) -> list[HyperparameterImportance]:
    return [*algorithm.hyperparameters, *filter(None, [algorithm.steps])]


def _shares_table(entries: Sequence[HyperparameterImportance]) -> Table:
    forest = any(entry.forest_share is not None for entry in entries)
    numbers = ("trials", "share by slices", "by chance", *(("share by forest",) if forest else ()))
    table = tables.plain_table("hyperparameter", *numbers, right=numbers)
    for entry in entries:
        chance = tables.NOTHING if entry.p_value is None else f"{entry.p_value:.3f}"
        by_forest = [_percent(entry.forest_share)] if forest else []
        table.add_row(entry.name, formats.count(entry.trials), _percent(entry.share), chance, *by_forest)
    return table


def _percent(share: float | None) -> str:
    return tables.NOTHING if share is None else formats.percent(max(0.0, share))


def _slices_table(entries: Sequence[HyperparameterImportance]) -> Table:
    numbers = "trials", "score ± standard error"
    table = tables.plain_table("hyperparameter", "values", *numbers, right=numbers)
    for entry in entries:
        for index, part in enumerate(entry.slices):
            score = formats.score(part.mean, part.standard_error)
            table.add_row("" if index else entry.name, part.label, formats.count(part.trials), score)
    return table
