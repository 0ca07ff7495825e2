"""Simulates races on the command line; see the package."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import race_simulator
from benchmarks.race_simulator.contenders import CONTROLS, known, specification_of
from benchmarks.race_simulator.families import FAMILIES
from benchmarks.race_simulator.race import CORRELATION, EPISODES
from benchmarks.race_simulator.table import Setting, default_processes, lines, simulate, tables
from podrace.errors import InvalidArgument

QUICK_REPLICATIONS = 3


def main() -> None:
    """Runs the races and prints the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.race_simulator",
        description=race_simulator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--families", type=names_of(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--contenders", type=names_of(known()), default=list(known()))
    parser.add_argument("--pods", type=numbers, default=[2, 8])
    parser.add_argument("--replications", type=int, default=100, help="seeds; default: 100")
    parser.add_argument("--first", type=int, default=0, help="first seed: tune on some, report on others")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the strategies")
    parser.add_argument("--against", default="", help="print differences to this contender at equal seeds")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="evaluation episodes of a score")
    parser.add_argument("--correlation", type=float, default=CORRELATION, help="of the returns of common episodes")
    parser.add_argument("--own-episodes", action="store_true", help="no two agents are scored on the same episodes")
    parser.add_argument("--processes", type=int, default=default_processes())
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of tables")
    parser.add_argument("--quick", action="store_true", help="two families, 2 pods, 3 seeds, one process")
    options = parser.parse_args()
    if options.against and options.against not in options.contenders:
        parser.error(f"--against {options.against}: choose among {', '.join(options.contenders)}")
    setting, processes = setting_of(options), 1 if options.quick else options.processes
    try:
        check(setting)
    except InvalidArgument as error:
        parser.error(error.message)
    cells = list(simulate(setting, processes))
    for line in lines(cells) if options.json else tables(cells, options.against):
        sys.stdout.write(line + "\n")


def setting_of(options: argparse.Namespace) -> Setting:
    """Returns what the arguments ask for."""
    return Setting(
        families=options.families[:2] if options.quick else options.families,
        contenders=options.contenders,
        pods=[2] if options.quick else options.pods,
        replications=QUICK_REPLICATIONS if options.quick else options.replications,
        first_seed=options.first,
        episodes=options.episodes,
        correlation=options.correlation,
        common_episodes=not options.own_episodes,
        overrides=[override(text) for text in options.set],
    )


def check(setting: Setting) -> None:
    """Checks the settings of every strategy before anything runs; raises InvalidArgument as specification_of."""
    for name in setting.contenders:
        contender = known()[name]
        for pods in setting.pods:
            specification_of(contender, pods, setting.episodes, () if name in CONTROLS else setting.overrides)


def override(text: str) -> tuple[str, Any]:
    """Parses KEY=VALUE; the value is JSON, or else text."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise SystemExit(f"--set {text}: expected KEY=VALUE, such as evolution.fresh_probability=0")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def numbers(text: str) -> list[int]:
    """Parses positive whole numbers separated by commas."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers of at least 1")
    return found


def names_of(choices: Mapping[str, Any]):
    """Returns a parser of names separated by commas."""

    def parse(text: str) -> Sequence[str]:
        names = [name for name in text.split(",") if name]
        if not names or set(names) - set(choices):
            raise argparse.ArgumentTypeError(f"{text!r}: choose among {', '.join(choices)}")
        return names

    return parse


if __name__ == "__main__":
    main()
