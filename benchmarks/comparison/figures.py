"""Draws anytime curves from the CSV file and the curve files; needs matplotlib."""

from pathlib import Path

from benchmarks.comparison.report import Results
from benchmarks.comparison.statistics import mean_curve
from benchmarks.comparison.tasks import CONDITIONS

POSITIONS = 60
"""Points at which a mean curve is drawn."""
LABELS = {"seconds": "wall clock (s)", "environment_steps": "environment steps"}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws one figure per conditions and axis: a panel per task, an interquartile mean curve per contender.

    Args:
        results: The rows.
        folder: Where the figures are written.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _figure(results, conditions, axis, folder / f"{conditions}-{axis.replace('_', '-')}.svg")
        for conditions in CONDITIONS
        for axis in LABELS
        if any(row.curve for row in results.of(conditions))
    ]


def _figure(results: Results, conditions: str, axis: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    runs = [row for row in results.of(conditions) if row.curve]
    tasks, contenders = sorted({row.task for row in runs}), results.contenders(conditions)
    figure = Figure(figsize=(4 * min(3, len(tasks)), 3.2 * -(-len(tasks) // 3)), layout="constrained")
    panels = list(figure.subplots(-(-len(tasks) // 3), min(3, len(tasks)), squeeze=False).flat)
    for task, panel in zip(tasks, panels, strict=False):
        for number, name in enumerate(contenders):
            curves = [results.curve(row, axis) for row in runs if (row.task, row.contender) == (task, name)]
            if curves:
                end = max(curve.positions[-1] for curve in curves)
                places = [end * step / POSITIONS for step in range(POSITIONS + 1)]
                panel.plot(places, mean_curve(curves, places, before=0.0), label=name, color=f"C{number % 10}",
                           linestyle="-" if number < 10 else "--", linewidth=1.2)  # fmt: skip
        panel.set(title=task, xlabel=LABELS[axis], ylabel="normalized return")
    for panel in panels[len(tasks) :]:
        panel.set_visible(False)
    handles, names = next(iter(figure.axes)).get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    return path
