"""Compares evolution strategies with random search and a single vanilla agent, at equal total environment steps.

Every run is a tournament on the embedded mesh: two fused pods of one core, synchronous, so that the same seed gives the
same champion under any load. Compared is the return of the final champion over new episodes that were not used for any
selection, never the score by which it was selected. The champion is selected after new evaluations of the best four
candidates, for all contenders alike.

    random-search        as many agents as the strategies have assignments, all new
    random-search-long   the same steps in eight new agents: each trains as long as a member of a population of eight
    vanilla              one agent with the algorithm's defaults and all of the steps; each of its scores is a candidate

The tasks `docking` and `swing` are deceptive (see benchmarks/tournament_tasks.py). `stocks` is examples/stocks.toml;
its champions are evaluated on new windows of the validation split and, as a second metric, of the backtest split.

    python benchmarks/tournament.py --folder FOLDER [--tasks docking,swing,stocks] [--contenders NAMES] [--seeds 5]
    python benchmarks/tournament.py --quick

Every finished run is a line of FOLDER/runs.jsonl; the same command continues where it was stopped. Prints one JSON
object per line: medians over seeds with 90 % bootstrap intervals, of each contender alone, and compared with random
search and with vanilla.
"""

import argparse
import copy
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from races import Race, Run, Summary, line, of, run, summarize

from podrace.specification import catalog

EXAMPLES = Path(__file__).parents[1] / "examples"
RANDOM, LONG, VANILLA = "random-search", "random-search-long", "vanilla"
STRATEGIES = tuple(name for name in catalog.STRATEGIES if name != RANDOM)
CONTENDERS = (*STRATEGIES, RANDOM, LONG, VANILLA)
CONTROLS = (RANDOM, LONG, VANILLA)
PODS, POPULATION, ASSIGNMENTS = 2, 8, 48
FRESH = "fresh"
FRESH_EPISODES = 256
QUICK_SHARE = 4
"""A quick run has the assignments divided by this number."""

SEARCHED: Mapping[str, Any] = {
    "learning_rate": {"low": 3e-5, "high": 2e-2},
    "discount": {"low": 0.9, "high": 0.999},
    "gae_lambda": {"low": 0.8, "high": 0.99},
    "entropy_coefficient": {"low": 1e-6, "high": 3e-2},
    "clip_range": {"low": 0.1, "high": 0.3},
}
"""What every contender except vanilla searches; the first agent of each has the algorithm's defaults."""


def cheap_task(name: str, minibatch_size: int) -> dict[str, Any]:
    """Returns a deceptive task; a larger minibatch means fewer gradient steps."""
    fixed = {"hidden_sizes": [32, 32], "horizon": 64, "epochs": 4, "minibatch_size": minibatch_size}
    return {
        "environment": {"id": f"python:benchmarks.tournament_tasks:{name}", "count": 32},
        "algorithms": {"ppo": {"hyperparameters": {**SEARCHED, **fixed}}},
        "assignment": {"environment_steps": 16 * 64 * 32},
        "evaluation": {"episodes": 32},
        "reports": {FRESH: {"episodes": FRESH_EPISODES}},
    }


def stocks_task() -> dict[str, Any]:
    """Returns the example's task and search space, with fewer steps."""
    values = tomllib.loads((EXAMPLES / "stocks.toml").read_text())
    kept = {name: values[name] for name in ("environment", "algorithms", "evaluation")}
    windows = {"episodes": FRESH_EPISODES}
    return {
        **kept,
        "assignment": {"environment_steps": 12 * 64 * 128},
        "reports": {
            FRESH: {**windows, "options": {"split": "validation"}},
            "backtest": {**windows, "options": {"split": "backtest"}},
        },
    }


TASKS = {
    "docking": lambda: cheap_task("docking", 2048),
    "swing": lambda: cheap_task("swing", 512),
    "stocks": stocks_task,
}
METRICS = {"docking": (FRESH,), "swing": (FRESH,), "stocks": (FRESH, "backtest")}


def specification(task: str, contender: str, assignments: int) -> dict[str, Any]:
    """Returns the specification of one contender's tournament on a task."""
    values = copy.deepcopy(TASKS[task]())
    assignment = values["assignment"]["environment_steps"]
    total = assignment * assignments
    strategy = contender if contender in STRATEGIES else RANDOM
    # All contenders have the same number of scores to select from, after the same steps.
    values["evaluation"]["every_environment_steps"] = assignment
    values["evaluation"]["share"] = 0.5
    values["evolution"] = {"strategy": strategy}
    values["objective"] = {"environment_steps": total}
    values["champion"] = {"reevaluate_top": 4, "reevaluate_episodes": 128}
    values["synchronous"] = True
    pods = PODS
    if contender == LONG:
        values["assignment"]["environment_steps"] = total // POPULATION
    elif contender == VANILLA:
        values["assignment"]["environment_steps"] = total
        pods = 1
    values["pool"] = {"minimum_pods": pods, "maximum_pods": pods}
    values["pod"] = {"cores": 1, "layout": "fused"}
    return values


def races(tasks: Sequence[str], contenders: Sequence[str], seeds: int, assignments: int) -> list[Race]:
    """Returns all runs, seed by seed, so that an interrupted comparison covers all contenders."""
    return [
        Race(task, contender, seed, specification(task, contender, assignments))
        for seed in range(1, seeds + 1)
        for task in tasks
        for contender in contenders
    ]


# --- results -----------------------------------------------------------------------------------------------------


def findings(runs: Sequence[Run], tasks: Sequence[str], contenders: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yields each contender alone and compared with the controls, and the best strategy by name."""
    for task in tasks:
        for report in METRICS[task]:
            metric = "champion_return" if report == FRESH else f"champion_return_{report}"
            summaries = {name: summary(of(runs, task, name), report) for name in contenders}
            for name, own in summaries.items():
                if own is not None:
                    yield from lines(f"{task}/{name}", metric, name, own, summaries)
            if report == FRESH:
                yield from best_line(task, summaries)
        for name in contenders:
            failed = [run for run in runs if (run["case"], run["contender"]) == (task, name) and not run["good"]]
            for one in failed:
                yield {
                    "benchmark": "tournament",
                    "case": f"{task}/{name}/seed-{one['seed']}",
                    "metric": "failed",
                    "value": 1,
                    "unit": "1",
                    "reason": one["reason"],
                }


def summary(runs: Sequence[Run], report: str) -> Summary | None:
    """Summarizes the returns of the champions of some runs on new episodes."""
    return summarize([run["reports"][report]["mean_return"] for run in runs if report in run["reports"]])


def lines(
    case: str, metric: str, name: str, own: Summary, summaries: Mapping[str, Summary | None]
) -> Iterator[dict[str, object]]:
    """Yields a contender alone and, if it is a strategy, compared with each control."""
    yield line("tournament", case, metric, "1", own)
    for control in CONTROLS:
        other = summaries.get(control)
        if other is not None and name in STRATEGIES:
            yield line("tournament", case, metric, "1", own, control, other)


def best_line(task: str, summaries: Mapping[str, Summary | None]) -> Iterator[dict[str, object]]:
    """Yields whether the interval of the strategy with the highest median is above those of all controls."""
    known = {name: own for name, own in summaries.items() if own is not None}
    evolving = {name: own for name, own in known.items() if name in STRATEGIES}
    controls = {name: own for name, own in known.items() if name in CONTROLS}
    if not evolving or not controls:
        return
    best = max(evolving, key=lambda name: evolving[name].median)
    rival = max(controls, key=lambda name: controls[name].high)
    yield line("tournament", f"{task}/best: {best}", "champion_return", "1", evolving[best], rival, controls[rival])


def main() -> None:
    """Runs what has not been run yet, then prints the results of all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one task, three contenders, one seed: under a minute")
    parser.add_argument("--folder", type=Path, help="folder for the runs; a temporary one if --quick")
    parser.add_argument("--tasks", type=names_of(TASKS), default=list(TASKS))
    parser.add_argument("--contenders", type=names_of(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        with tempfile.TemporaryDirectory(prefix="pr-") as folder:
            compare(Path(folder), ["docking"], ["truncation", RANDOM, VANILLA], 1, ASSIGNMENTS // QUICK_SHARE)
        return
    if options.folder is None:
        parser.error("--folder: required: the runs are kept there, and the same command continues after a stop")
    compare(options.folder, options.tasks, options.contenders, options.seeds, ASSIGNMENTS)


def names_of(known: Sequence[str] | Mapping[str, Any]):
    """Returns a parser of names of `known`, separated by commas."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if not names or set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{text!r}: choose among {', '.join(known)}")
        return names

    return parse


def compare(folder: Path, tasks: Sequence[str], contenders: Sequence[str], seeds: int, assignments: int) -> None:
    """Runs the races and prints the results."""
    found = run(races(tasks, contenders, seeds, assignments), folder, notify=lambda text: print(text, file=sys.stderr))
    for finding in findings(found, tasks, contenders):
        print(json.dumps(finding), flush=True)


if __name__ == "__main__":
    main()
