"""Runs the papers' experiments, sized for this machine, and compares with Stable-Baselines3, RLlib and the market.

    stocks          five-minute prices: a vanilla agent, PPO, SAC and TD3 alone, their 1:1:1 tournament, the peers, the
                    index fund and the equal-weight pool. Equal environment steps for all. Policies are selected on
                    validation windows; the best policy of each run trades the backtest once
    ant, humanoid   MuJoCo: a vanilla agent and a tournament, and the peers, with equal seconds of training on two cores
    pods            time to a return of Ant with 1 and 2 real pods, and predicted for 8 to 80 (benchmarks/scale.py)

examples/paper-*.toml have the papers' own setting; benchmarks/papers/cases.py lists what is reduced. Peers get the
network, the hyperparameters and the batches of the vanilla agent, and the same number of evaluations during training,
of which the best is kept. Stable-Baselines3 is the extra `bench`; RLlib needs its own interpreter, with the simulators:

    python3 -m venv DIR
    DIR/bin/pip install --constraint <(grep -v ^gymnasium= constraints.txt) torch '.[mujoco,stocks,bench-rllib]'

    python benchmarks/paper.py --folder FOLDER --cases stocks --data PRICES.npz [--steps 327680] [--seeds 5]
    python benchmarks/paper.py --folder FOLDER --cases ant,humanoid [--seconds 300] [--rllib-python DIR/bin/python]
    python benchmarks/paper.py --quick

PRICES is an array file (`podrace data build`) or an archive of five-minute bars (benchmarks/papers/data.py). Every
finished run is a line of FOLDER/runs.jsonl: the same command continues where it was stopped. A quick run trades
synthetic prices. Prints one JSON object per line: medians over seeds with 90 % bootstrap intervals.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import races
from harness.races import Run, Summary, line, of, summarize
from papers import peer_runs
from papers.cases import (
    FRESH,
    MIXED,
    MUJOCO,
    OWN_CONTENDERS,
    RLLIB,
    SB3,
    STEPS_UNIT,
    STOCKS,
    TOURNAMENT,
    Budget,
    mujoco,
    peer_job,
    race,
    resolved_toml,
)

HERE = Path(__file__).parent
PODS_CASE = "pods"
CASES = (STOCKS, *MUJOCO, PODS_CASE)
PEERS = (SB3, RLLIB)
MEASURES = {
    "cumulative_return": "1",
    "annual_return": "1/a",
    "annual_volatility": "1",
    "sharpe_ratio": "1",
    "maximum_drawdown": "1",
    "calmar_ratio": "1",
}
MARKET = {"index_": "index fund", "equal_weight_": "equal-weight hold"}
QUARTERS = (0.25, 0.5, 0.75, 1.0)
PODS_TARGET = 1000.0
PODS_ASSIGNMENT_STEPS = 100_000
PREDICTED_PODS = (8, 16, 32, 80)
QUICK_PRICES = "synthetic:minute?symbols=5&days=120&seed=1"
QUICK_STEPS = 16_384


def notify(text: str) -> None:
    """Prints a message to standard error, separate from the results."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Runs what has not been run yet, then prints the results of all runs."""
    options = arguments()
    if options.quick:
        with tempfile.TemporaryDirectory(prefix="pr-") as folder:
            budget = Budget(QUICK_STEPS, 1.0)
            compare(STOCKS, Path(folder), QUICK_PRICES, 1, budget, ["ppo", SB3], {SB3: sys.executable})
        return
    run_cases(options.cases, options)


def arguments() -> argparse.Namespace:
    """Parses and checks the arguments before anything runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of two contenders on synthetic prices")
    parser.add_argument("--folder", type=Path, help="folder for the runs; a temporary one if --quick")
    parser.add_argument("--cases", type=names, default=list(MUJOCO), help=f"of {', '.join(CASES)}")
    parser.add_argument("--data", type=Path, help="prices, for the case stocks")
    parser.add_argument("--seeds", type=int, default=5)
    wanted = f"environment steps per run of stocks, a multiple of {STEPS_UNIT}"
    parser.add_argument("--steps", type=int, default=5 * STEPS_UNIT, help=wanted)
    parser.add_argument("--seconds", type=float, default=300.0, help="training seconds per run of ant and humanoid")
    parser.add_argument("--contenders", type=names, default=[], help="only these, separated by commas; all by default")
    parser.add_argument("--rllib-python", default=sys.executable, help="interpreter that has RLlib")
    options = parser.parse_args()
    known = {name for case in options.cases if case in OWN_CONTENDERS for name in (*OWN_CONTENDERS[case], *PEERS)}
    for option, given, choices in (("cases", options.cases, CASES), ("contenders", options.contenders, sorted(known))):
        if unknown := set(given) - set(choices):
            parser.error(f"--{option} {', '.join(sorted(unknown))}: choose among {', '.join(choices)}")
    if options.steps <= 0 or options.steps % STEPS_UNIT:
        parser.error(f"--steps {options.steps}: expected a multiple of {STEPS_UNIT}")
    if not options.quick and options.folder is None:
        parser.error("--folder: required: the runs are kept there, and the same command continues after a stop")
    if not options.quick and STOCKS in options.cases and options.data is None:
        parser.error("--data: the case stocks needs prices; --help says which")
    return options


def names(text: str) -> list[str]:
    """Splits names separated by commas."""
    return [name for name in text.split(",") if name]


def run_cases(cases: Sequence[str], options: argparse.Namespace) -> None:
    """Runs each case in order."""
    budget = Budget(options.steps, options.seconds)
    pythons = {SB3: sys.executable, RLLIB: options.rllib_python}
    for case in cases:
        if case == PODS_CASE:
            pods(options.folder, options.seeds)
            continue
        wanted = options.contenders or [*OWN_CONTENDERS[case], *PEERS]
        data = prices(options.data, options.folder) if case == STOCKS else ""
        compare(case, options.folder, data, options.seeds, budget, wanted, pythons)


def prices(source: Path, folder: Path) -> str:
    """Returns the array file that pods read; builds it if it does not exist."""
    from papers.data import prepare

    return str(prepare(source.resolve(), folder.resolve() / f"{source.stem}-bars.npz"))


def compare(
    case: str,
    folder: Path,
    data: str,
    seeds: int,
    budget: Budget,
    wanted: Sequence[str],
    pythons: dict[str, str],
) -> None:
    """Runs all contenders of a case and prints the results."""
    own = [name for name in OWN_CONTENDERS[case] if name in wanted]
    peers = [name for name in PEERS if name in wanted]
    numbers = range(1, seeds + 1)
    found = list(
        races.run([race(case, name, seed, budget, data) for seed in numbers for name in own], folder, notify=notify)
    )
    have = peer_runs.available({name: pythons[name] for name in peers if name in pythons}, notify=notify)
    jobs = [peer_job(case, name, seed, budget, data) for seed in numbers for name in have]
    found += peer_runs.run(jobs, have, folder, notify=notify)
    print_findings(case, found, [*own, *have])


def print_findings(case: str, runs: Sequence[Run], contenders: Sequence[str]) -> None:
    """Prints every result."""
    make = trading_lines if case == STOCKS else curve_lines
    for finding in [*make(case, runs, contenders), *failures(runs)]:
        print(json.dumps(finding), flush=True)


def failures(runs: Sequence[Run]) -> Iterator[dict[str, object]]:
    """Yields a line with the reason for each run that is excluded."""
    for run in runs:
        if not run["good"]:
            case = f"{run['case']}/{run['contender']}/seed-{run['seed']}"
            yield {
                "benchmark": "paper",
                "case": case,
                "metric": "failed",
                "value": 1,
                "unit": "1",
                "reason": run["reason"],
            }


# --- trading -----------------------------------------------------------------------------------------------------


def trading_lines(case: str, runs: Sequence[Run], contenders: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yields the measures on the backtest, and those on validation before it."""
    for report in ("backtest", "validation"):
        for measure, unit in MEASURES.items():
            metric = f"{report}_{measure}"
            found = {name: measured(of(runs, case, name), report, measure) for name in contenders}
            for name, own in found.items():
                if own is not None:
                    other = found.get(MIXED) if name != MIXED else None
                    yield line("paper", f"{case}/{name}", metric, unit, own, MIXED, other)
            for prefix, name in MARKET.items():
                # Equal in every run: the market does not depend on the seed.
                market = measured([run for run in runs if run["good"]][:1], report, prefix + measure)
                if market is not None:
                    yield line("paper", f"{case}/{name}", metric, unit, market)


def measured(runs: Sequence[Run], report: str, measure: str) -> Summary | None:
    """Summarizes a measure over seeds."""
    metrics = [run["reports"].get(report, {}).get("metrics", {}) for run in runs]
    return summarize([values[measure] for values in metrics if measure in values])


# --- Ant and Humanoid --------------------------------------------------------------------------------------------


def curve_lines(case: str, runs: Sequence[Run], contenders: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yields returns against seconds and against environment steps, and those of the best policy on new episodes."""
    good = [run for run in runs if run["good"] and run["curve"]]
    if not good:
        return
    seconds = min(run["training_seconds"] for run in good)
    steps = min(run["environment_steps"] for run in good)
    for metric, position, span, unit in (("seconds", 1, seconds, "s"), ("steps", 0, steps, "1")):
        for quarter in QUARTERS:
            for name in contenders:
                values = [best_by(run, position, quarter * span) for run in of(good, case, name)]
                own = summarize([value for value in values if value is not None])
                if own is not None:
                    at = f"return_after_{races.rounded(quarter * span):g}_{metric}"
                    yield line("paper", f"{case}/{name}", at, "1", own) | {"at": quarter * span, "at_unit": unit}
    totals = {name: summarize([run["environment_steps"] for run in of(good, case, name)]) for name in contenders}
    final = {name: summarize(fresh_returns(of(good, case, name))) for name in contenders}
    for metric, found in (("environment_steps", totals), ("fresh_return", final)):
        for name, own in found.items():
            other = found.get(TOURNAMENT) if name != TOURNAMENT else None
            if own is not None:
                yield line("paper", f"{case}/{name}", metric, "1", own, TOURNAMENT, other)


def best_by(run: Run, position: int, limit: float) -> float | None:
    """Returns the best score of a run up to a limit; None if there was none yet."""
    scores = [point[2] for point in run["curve"] if point[position] <= limit]
    return max(scores, default=None)


def fresh_returns(runs: Sequence[Run]) -> list[float]:
    """Returns the score of each run's best policy on episodes that were not used to select it."""
    return [run["reports"][FRESH]["mean_return"] for run in runs if FRESH in run["reports"]]


# --- pods --------------------------------------------------------------------------------------------------------


def pods(folder: Path, repetitions: int) -> None:
    """Runs benchmarks/scale.py to record, validate and predict; it prints its own lines."""
    folder.mkdir(parents=True, exist_ok=True)
    values = mujoco("ant", TOURNAMENT, 200.0)
    values["objective"] = {"target_return": PODS_TARGET, "wall_clock_duration": "20m"}
    values["assignment"] = {"environment_steps": PODS_ASSIGNMENT_STEPS}
    path = folder / "paper-pods.toml"
    path.write_text(resolved_toml(values, "paper-pods"))
    command = [sys.executable, str(HERE / "scale.py"), "--validate", str(folder / "paper-pods.json")]
    command += ["--spec", str(path), "--repetitions", str(repetitions), "--pods", *map(str, PREDICTED_PODS)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
