"""Makes Markdown tables from the rows and the curve files. Pure, except that curve files are read."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.comparison.contenders import PEERS
from benchmarks.comparison.oracles import Scale
from benchmarks.comparison.rows import Point, Row, latest, read_curve
from benchmarks.comparison.statistics import (
    Curve,
    Interval,
    area,
    difference_of,
    first_position,
    holm,
    honesty,
    interquartile_mean,
    interval_of,
    mean_curve,
    normalized,
    paired,
    sign_flip_test,
    value_at,
)
from benchmarks.comparison.tasks import CONDITIONS, DEFAULTS

INFERIORITY = 0.1
"""Share of the range by which a contender may be worse at equal environment steps."""
LEVELS = (0.25, 0.5, 0.75, 0.9)
"""Normalized returns whose times are compared."""
SIGNIFICANCE = 0.05
Scores = Mapping[str, Mapping[int, float]]
"""Normalized returns by task and seed."""


@dataclass(frozen=True)
class Results:
    """The rows of one comparison."""

    rows: Sequence[Row]
    """All rows of the CSV file."""
    scales: Mapping[str, Scale]
    folder: Path
    """Folder of the CSV file."""

    @cached_property
    def runs(self) -> list[Row]:
        """The last row of each run that completed, for tasks with a scale; only those with the usual budget.

        The usual budget is that of most runs of the task under these conditions; of equally frequent ones, the longest.
        """
        good = [row for row in latest(self.rows).values() if row.good and row.task in self.scales]
        runs = Counter((row.conditions, row.task, row.budget_seconds) for row in good)
        # The last entry of a key counts, so rising numbers of runs, and budgets, leave the largest.
        usual = {
            (conditions, task): budget
            for (conditions, task, budget), _ in sorted(runs.items(), key=lambda item: (item[1], item[0][2]))
        }
        return [row for row in good if row.budget_seconds == usual[row.conditions, row.task]]

    def of(self, conditions: str, contender: str = "") -> list[Row]:
        """Returns the runs under some conditions, of one contender or of all."""
        return [row for row in self.runs if row.conditions == conditions and contender in ("", row.contender)]

    def contenders(self, conditions: str) -> list[str]:
        """Returns the contenders with runs, in order of their first row."""
        return list(dict.fromkeys(row.contender for row in self.of(conditions)))

    def scores(self, conditions: str, contender: str) -> Scores:
        """Returns the normalized final returns of a contender; of repeated settings the last counts."""
        found: dict[str, dict[int, float]] = {}
        for row in self.of(conditions, contender):
            found.setdefault(row.task, {})[row.seed] = self.normalized(row.task, float(row.final_return or 0.0))
        return found

    def areas(self, conditions: str, contender: str) -> Scores:
        """Returns the areas under the normalized anytime curves of a contender, divided by the budget."""
        found: dict[str, dict[int, float]] = {}
        for row in self.of(conditions, contender):
            if row.curve:
                found.setdefault(row.task, {})[row.seed] = area(self.curve(row), row.budget_seconds, before=0.0)
        return found

    def normalized(self, task: str, value: float) -> float:
        """Returns a return on the scale of its task."""
        return normalized(value, self.scales[task].random, self.scales[task].oracle)

    def curve(self, row: Row, axis: str = "seconds") -> Curve:
        """Returns the normalized anytime curve of a run over `seconds` or `environment_steps`."""
        points: list[Point] = read_curve(self.folder / row.curve) if row.curve else []
        return Curve(
            tuple(float(getattr(point, axis)) for point in points),
            tuple(self.normalized(row.task, point.mean) for point in points),
        )


def report(results: Results, base: str) -> Iterator[str]:
    """Yields the lines of the report.

    Args:
        results: The rows.
        base: Contender that is compared with all others.
    """
    for conditions in CONDITIONS:
        if not results.of(conditions):
            continue
        yield f"\n## {conditions}\n"
        yield from _aggregates(results, conditions)
        if base in results.contenders(conditions):
            yield from _differences(results, conditions, base)
            yield from _single_tasks(results, conditions, base)
            yield from _equal_steps(results, conditions, base)
            if conditions == DEFAULTS:
                yield from _times(results, conditions, base)
    yield from _honesty(results)
    yield from _failures(results)


def _aggregates(results: Results, conditions: str) -> Iterator[str]:
    yield "Normalized return of the final policy on fresh episodes: interquartile mean over tasks and seeds, with its"
    yield "90 % interval; medians of steps and load.\n"
    yield "| contender | runs | return | anytime area | steps | load |\n|---|---|---|---|---|---|"
    for name in results.contenders(conditions):
        runs = results.of(conditions, name)
        scores = {task: list(seeds.values()) for task, seeds in results.scores(conditions, name).items()}
        areas = [one for seeds in results.areas(conditions, name).values() for one in seeds.values()] or [math.nan]
        yield (
            f"| `{name}` | {len(runs)} | {shown(interval_of(scores))}"
            f" | {interquartile_mean(areas):.3f} | {_median([row.environment_steps for row in runs]):,.0f}"
            f" | {_median([row.load for row in runs]):.1f} |"
        )
    yield from _compute(results, conditions)


def _compute(results: Results, conditions: str) -> Iterator[str]:
    yield "\nWhat the compute was used for: shares and numbers, means over runs; empty where they are not known.\n"
    yield "| contender | share of steps in the policy's lineage | pod time in evaluations | agents | stopped early |"
    yield "|---|---|---|---|---|"
    for name in results.contenders(conditions):
        runs = results.of(conditions, name)
        yield (
            f"| `{name}` | {_mean([row.share_behind for row in runs], '.2f')}"
            f" | {_mean([row.evaluation_share for row in runs], '.2f')} | {_mean([row.agents for row in runs], '.1f')}"
            f" | {_mean([row.stopped_agents for row in runs], '.1f')} |"
        )


def _differences(results: Results, conditions: str, base: str) -> Iterator[str]:
    yield f"\n`{base}` minus each other contender at equal seeds and wall clock, on the tasks that both have run.\n"
    yield "| compared with | tasks | runs | difference | interval above 0 | difference of anytime areas |"
    yield "|---|---|---|---|---|---|"
    own, own_areas = results.scores(conditions, base), results.areas(conditions, base)
    for name in results.contenders(conditions):
        other = results.scores(conditions, name)
        found = difference_of(own, other) if name != base else None
        if found is not None:
            common = sorted(own.keys() & other.keys())
            runs = sum(len(paired(own[task], other[task])) for task in common)
            answer = _answer(found, found.above_zero)
            areas = difference_of(own_areas, results.areas(conditions, name))
            yield f"| `{name}` | {len(common)} | {runs} | {shown(found)} | {answer} | {shown(areas) if areas else ''} |"


def _single_tasks(results: Results, conditions: str, base: str) -> Iterator[str]:
    yield f"\nSingle tasks: mean paired difference of `{base}`; `p` that it is worse by chance, adjusted by Holm.\n"
    yield "| compared with | task | seeds | difference | p | significantly worse |\n|---|---|---|---|---|---|"
    own = results.scores(conditions, base)
    for name in results.contenders(conditions):
        if name == base:
            continue
        other = results.scores(conditions, name)
        gaps = {
            task: [first - second for first, second in paired(own[task], other[task])]
            for task in sorted(own.keys() & other.keys())
        }
        gaps = {task: values for task, values in gaps.items() if values}
        adjusted = holm({task: sign_flip_test(values) for task, values in gaps.items()})
        for task, values in gaps.items():
            worse = "yes" if adjusted[task] < SIGNIFICANCE else "no"
            mean, p = statistics.fmean(values), adjusted[task]
            yield f"| `{name}` | {task} | {len(values)} | {mean:+.3f} | {p:.3f} | {worse} |"


def _equal_steps(results: Results, conditions: str, base: str) -> Iterator[str]:
    """Yields the comparison with other libraries at the number of steps that the shorter of both runs made."""
    lines = []
    for name in results.contenders(conditions):
        if name not in PEERS:
            continue
        own, other = at_equal_steps(results, conditions, base, name)
        found = difference_of(own, other)
        if found is not None:
            verdict = _answer(found, found.low > -INFERIORITY)
            lines.append(f"| `{name}` | {sum(map(len, other.values()))} | {shown(found)} | {verdict} |")
    if lines:
        yield f"\n`{base}` at equal environment steps: not inferior if the interval is above {-INFERIORITY:g}.\n"
        yield "| compared with | runs | difference | not inferior |\n|---|---|---|---|"
        yield from lines


def at_equal_steps(results: Results, conditions: str, first: str, second: str) -> tuple[Scores, Scores]:
    """Returns normalized returns by task and seed at the steps that both runs made; before the first policy 0."""
    found: tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]] = ({}, {})
    others = {(row.task, row.seed): row for row in results.of(conditions, second) if row.curve}
    for row in results.of(conditions, first):
        other = others.get((row.task, row.seed))
        if other is None or not row.curve:
            continue
        steps = min(row.environment_steps, other.environment_steps)
        for scores, one in zip(found, (row, other), strict=True):
            value = value_at(results.curve(one, "environment_steps"), steps)
            scores.setdefault(row.task, {})[row.seed] = 0.0 if value is None else value
    return found


def _times(results: Results, conditions: str, base: str) -> Iterator[str]:
    """Yields the times to returns, compared with those of each other contender."""
    yield f"\nSeconds to a normalized return, interquartile mean curve over seeds: `{base}` / other (ratio).\n"
    yield "| compared with | task | " + " | ".join(f"{level:g}" for level in LEVELS) + " |"
    yield "|---|---|" + "---|" * len(LEVELS)
    tasks = sorted(results.scores(conditions, base))
    for name in results.contenders(conditions):
        for task in tasks:
            own, other = (_task_curve(results, conditions, one, task) for one in (base, name))
            if name != base and own and other:
                cells = [_ratio(first_position(own, level), first_position(other, level)) for level in LEVELS]
                yield f"| `{name}` | {task} | " + " | ".join(cells) + " |"


def _task_curve(results: Results, conditions: str, contender: str, task: str) -> Curve | None:
    curves = [results.curve(row) for row in results.of(conditions, contender) if row.task == task and row.curve]
    if not curves:
        return None
    places = sorted({place for curve in curves for place in curve.positions})
    return Curve(tuple(places), tuple(mean_curve(curves, places, before=0.0)))


def _ratio(own: float | None, other: float | None) -> str:
    if own is None or other is None:
        return f"{_seconds(own)} / {_seconds(other)}"
    return f"{own:.0f} / {other:.0f} ({own / other:.2f})" if other else f"{own:.0f} / {other:.0f}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}"


def _honesty(results: Results) -> Iterator[str]:
    yield "\n## Reported scores\n"
    yield "z = (reported score - return on fresh episodes) / standard error of the difference.\n"
    yield "| contender | runs | within two standard errors | mean z |\n|---|---|---|---|"
    for name in dict.fromkeys(row.contender for row in results.runs):
        found = honesty([row.z for row in results.runs if row.contender == name and row.z is not None])
        if found.runs:
            yield f"| `{name}` | {found.runs} | {found.within_two} | {found.mean_z:+.2f} |"


def _failures(results: Results) -> Iterator[str]:
    failed = [row for row in latest(results.rows).values() if not row.good]
    if failed:
        yield "\n## Failed runs\n"
        yield "| conditions | task | contender | seed | reason |\n|---|---|---|---|---|"
        for row in failed:
            yield f"| {row.conditions} | {row.task} | `{row.contender}` | {row.seed} | {row.reason[:200]} |"


def _answer(interval: Interval, answer: bool) -> str:
    """Formats what an interval decides; without one, nothing is decided."""
    return "" if math.isnan(interval.low) else "yes" if answer else "no"


def shown(interval: Interval) -> str:
    """Formats a value with its interval, if there is one."""
    if math.isnan(interval.low):
        return f"{interval.value:.3f} [too few seeds]"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(statistics.fmean(known), form) if known else ""


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
