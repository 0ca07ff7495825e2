"""Implements the command of `tournament.py`: runs what has no row yet, one run after another, and prints the report."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.comparison import figures, oracles, peer_runs, rows
from benchmarks.comparison.contenders import Peer, known
from benchmarks.comparison.fresh import ROOT
from benchmarks.comparison.measure import EPISODES, Measurement
from benchmarks.comparison.plan import REGIMES, Choice, Run, plan_table, runs, unknown_contenders
from benchmarks.comparison.report import Results, report
from benchmarks.comparison.tasks import TASKS
from podrace.errors import InvalidArgument

RESULTS = ROOT / "docs" / "results"
CSV = "tournament.csv"
CURVES = "curves"
QUICK_SECONDS, QUICK_EPISODES = 8.0, 64
QUICK = Choice(("unknown",), ("docking",), ("tournament", "vanilla"), 1, QUICK_SECONDS)
BASE = "incumbent"
OVERHEAD_STEPS = 1000


def main(description: str) -> None:
    """Parses the arguments and runs the command."""
    options = parser(description).parse_args()
    # Raises SystemExit, so that everything a run has started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if options.quick:
        with tempfile.TemporaryDirectory(prefix="pr-") as folder:
            run_all(QUICK, Path(folder), python=sys.executable, hours=0.0, episodes=QUICK_EPISODES)
            print_report(Path(folder), "tournament", draws=False)
        return
    choice = Choice(
        options.regime, options.tasks, options.contenders, options.seeds, options.seconds, options.first_seed
    )
    check_contenders(choice.contenders)
    if options.adapter:
        print_overheads(options.tasks or list(TASKS))
    elif options.plan:
        print_plan(choice, options.folder, options.python)
    elif options.record_oracles:
        oracles.write(oracles.improved(oracles.read(), rows.read(options.folder / CSV)))
    else:
        if not options.report:
            run_all(
                choice,
                options.folder,
                python=options.python,
                hours=options.hours,
                episodes=EPISODES,
                steps_of=options.steps_of,
            )
        print_report(options.folder, options.base, draws=True)


def parser(description: str) -> argparse.ArgumentParser:
    """Returns the parser of the arguments."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--regime", type=names_of(REGIMES), default=[], help=f"of {', '.join(REGIMES)}; default: all")
    made.add_argument("--tasks", type=names_of(TASKS), default=[], help="default: those of the regime")
    made.add_argument("--contenders", type=split, default=[], help="default: those of the regime")
    made.add_argument("--seeds", type=int, default=0, help="number of seeds; default: that of the regime")
    made.add_argument("--first-seed", type=int, default=1, help="the others follow it; default: 1")
    made.add_argument("--seconds", type=float, default=0.0, help="wall-clock budget of a run; default: the task's")
    made.add_argument(
        "--steps-of", metavar="CONTENDER", default="", help="end tournaments after the environment steps of its runs"
    )
    made.add_argument("--hours", type=float, default=0.0, help="begin no run that would not end within this time")
    made.add_argument("--folder", type=Path, default=RESULTS, help=f"of {CSV} and the curves; default: docs/results")
    made.add_argument("--python", default=sys.executable, help="interpreter that has Optuna, Ray and SB3")
    made.add_argument("--base", default=BASE, help=f"contender that the report compares with others; default: {BASE}")
    made.add_argument("--plan", action="store_true", help="print the runs and hours of each regime, and run nothing")
    made.add_argument("--report", action="store_true", help="print the report, and run nothing")
    made.add_argument("--adapter", action="store_true", help="measure what the vector environments for SB3 cost")
    made.add_argument("--record-oracles", action="store_true", help="make better final returns the oracles of tasks")
    made.add_argument("--quick", action="store_true", help="one task, two contenders, one seed: under a minute")
    return made


def split(text: str) -> list[str]:
    """Parses names separated by commas."""
    return [name for name in text.split(",") if name]


def names_of(choices: Collection[str] | Mapping[str, Any]) -> Callable[[str], list[str]]:
    """Returns a parser of names of `choices`, separated by commas."""

    def parse(text: str) -> list[str]:
        names = split(text)
        if not names or set(names) - set(choices):
            raise argparse.ArgumentTypeError(f"{text!r}: choose among {', '.join(choices)}")
        return names

    return parse


def check_contenders(names: Sequence[str]) -> None:
    """Checks the names of contenders.

    Raises:
        SystemExit: This version of podrace does not know one of them.
    """
    if wrong := [name for name in names if name not in known()]:
        raise SystemExit(f"--contenders {wrong[0]}: choose among {', '.join(known())}")


def measurements(choice: Choice, python: str, episodes: int = EPISODES) -> list[Measurement]:
    """Returns the wanted runs that are possible here, and reports the contenders that are left out."""
    contenders = known()
    if not choice.contenders:
        for name in unknown_contenders(contenders):
            notify(f"{name} is left out: this version of podrace does not know it")
    lacking = {library: peer_runs.missing(library, python) for library in peer_runs.MODULES}
    found, refused = [], set()
    for run in runs(choice, contenders):
        contender = contenders[run.contender]
        if run.contender in refused:
            continue
        one = Measurement(run, contender, python, episodes)
        problem = (
            lacking[contender.library] and f"{python} has no {lacking[contender.library]}"
            if isinstance(contender, Peer)
            else ""
        )
        try:
            one.check()
        except InvalidArgument as error:
            problem = error.message
        if problem:
            refused.add(run.contender)
            notify(f"{run.contender} is left out: {problem}")
        else:
            found.append(one)
    return found


def with_steps_of(measured: Sequence[Measurement], contender: str, known_rows: Sequence[rows.Row]) -> list[Measurement]:
    """Returns the same tournaments with other budgets: the environment steps that a contender made with the same seed.

    Args:
        measured: The runs. Those of other libraries, of contenders whose agents train for a part of the clock, and
            those without such steps are left out.
        contender: The contender.
        known_rows: Rows of the CSV file.
    """
    steps = {
        (row.conditions, row.task, row.seed): row.environment_steps
        for row in known_rows
        if row.good and row.contender == contender
    }
    found = []
    for one in measured:
        run, own = one.run, known()[one.run.contender]
        budget = steps.get((run.conditions, run.task, run.seed))
        if budget is None or isinstance(own, Peer) or own.parts:
            notify(f"{title(run)}: is left out with --steps-of {contender}")
            continue
        renamed = replace(run, contender=f"{run.contender}-with-steps-of-{contender}")
        found.append(Measurement(renamed, own, environment_steps=budget))
    return found


def run_all(choice: Choice, folder: Path, *, python: str, hours: float, episodes: int, steps_of: str = "") -> None:
    """Runs every wanted run without a completed row, in order, and appends the rows.

    Args:
        choice: Which runs are wanted.
        folder: Folder of the CSV file.
        python: Interpreter of other libraries.
        hours: Begin no run that is not expected to end within this time; 0: no limit.
        episodes: Fresh episodes of each final policy.
        steps_of: Contender whose environment steps are the budgets, see `with_steps_of`; empty: the wall clock.
    """
    began, path = time.monotonic(), folder / CSV
    done = {key for key, row in rows.latest(rows.read(path)).items() if row.good}
    wanted = measurements(choice, python, episodes)
    if steps_of:
        wanted = with_steps_of(wanted, steps_of, rows.read(path))
    missing = [one for one in wanted if one.key not in done]
    for number, one in enumerate(missing, start=1):
        # The same run may belong to two regimes.
        if one.key in done:
            continue
        left = 3600 * hours - (time.monotonic() - began)
        if hours and one.run.expected_seconds > left:
            notify(f"--hours {hours:g}: stopped with {len(missing) - number + 1} runs left")
            return
        notify(f"{number} of {len(missing)}: {title(one.run)}")
        row = one.measure(folder / CURVES, notify)
        rows.append(path, row)
        if row.good:
            done.add(one.key)
        notify(f"    {_result(row)}")


def title(run: Run) -> str:
    """Returns a run in a few words."""
    return f"{run.conditions}, {run.task}, {run.contender}, seed {run.seed}, {run.seconds:g} s"


def _result(row: rows.Row) -> str:
    if not row.good:
        return f"failed: {row.reason}"
    return f"{row.final_return:.4g} ± {row.final_error:.2g}, {row.environment_steps:,} steps, load {row.load:.1f}"


def print_plan(choice: Choice, folder: Path, python: str) -> None:
    """Prints the table of the plan."""
    done = {key for key, row in rows.latest(rows.read(folder / CSV)).items() if row.good}
    wanted = measurements(choice, python)
    print("\n".join(plan_table([one.run for one in wanted], {one.run for one in wanted if one.key in done})))


def print_report(folder: Path, base: str, *, draws: bool) -> None:
    """Prints the report; draws the figures if matplotlib is installed and there are rows."""
    results = Results(rows.read(folder / CSV), oracles.read(), folder)
    print("\n".join(report(results, base)))
    if draws and results.runs:
        try:
            for path in figures.draw(results, folder):
                notify(f"wrote {path.name}")
        except ModuleNotFoundError as error:
            notify(f"no figures: {error.name} is not installed; pip install '.[plots]'")


def print_overheads(tasks: Sequence[str]) -> None:
    """Prints what the vector environments for Stable-Baselines3 cost, per step of all lanes."""
    from benchmarks.comparison.vector import overhead

    print("| task | lanes | simulator (µs) | added (µs) | overhead |\n|---|---|---|---|---|")
    for name in tasks:
        task = TASKS[name]
        alone, added = overhead(task.id, task.options, task.count, OVERHEAD_STEPS)
        print(f"| {name} | {task.count} | {1e6 * alone:.0f} | {1e6 * added:.0f} | {added / alone:.0%} |")


def notify(text: str) -> None:
    """Prints a progress message."""
    print(text, file=sys.stderr, flush=True)
