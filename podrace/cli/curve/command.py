"""Implements `podrace curve`: plots return over wall-clock time and environment steps, from snapshots."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from podrace.cli import EXIT_FAILED, session
from podrace.cli.curve import plots
from podrace.cli.curve.output import csv_text, json_values
from podrace.cli.curve.plots import STEPS, SUFFIXES, WALL_CLOCK
from podrace.cli.results.plots import new_figure
from podrace.cli.session import find_tournament
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import check_file, whole_file
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import EPISODE_RANGE, SEED_RANGE, Settings, mesh_options, parse_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.client.curve.points import AGENTS, ALL, CHAMPION, CurvePoint, curves
from podrace.client.curve.reading import EPISODES, CurveSettings, read_curve, snapshots_of
from podrace.client.hyperparameters import HyperparametersByAgent, read_hyperparameters
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.mesh.home_lock import Use

_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class CurveRequest:
    """Arguments of the command."""

    names: Sequence[str]
    by: Sequence[str]
    curve: CurveSettings
    csv: Path | None
    plot: Path | None


@click.command()
@click.argument("tournaments", metavar="TOURNAMENT...", nargs=-1, required=True)
@click.option(
    "--of", type=click.Choice([CHAMPION, AGENTS, ALL]), default=CHAMPION, show_default=True, help="Curves to draw."
)
@click.option("--by", type=click.Choice([WALL_CLOCK, STEPS]), help="Draw only over this axis.  [default: both]")
@click.option("--episodes", type=EPISODE_RANGE, default=EPISODES, show_default=True, help="Episodes per snapshot.")
@click.option("--option", "options", multiple=True, metavar="K=V", help="Option of the environment; repeatable.")
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Seed of the fresh episodes.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the most likely one.")
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Write the points to this CSV file.")
@click.option("--plot", "plot_file", type=_FILE, metavar="FILE.png|svg", help="Plot the curves to this file.")
@mesh_options
def curve(
    settings: Settings,
    tournaments: Sequence[str],
    of: str,
    by: str | None,
    episodes: int,
    options: Sequence[str],
    seed: int,
    stochastic: bool,
    csv_file: Path | None,
    plot_file: Path | None,
) -> int:
    """Draw learning curves from evaluated snapshots.

    TOURNAMENT is an id, a prefix of one, or `latest`; several tournaments are drawn in one plot. A tournament keeps
    snapshots if its specification sets evaluation.snapshot_period. Each snapshot is evaluated once, on fresh episodes
    that were not used for selection, with the environment options of the tournament's evaluation and of --option.
    The results are kept and reused. While a tournament runs, evaluations alternate with its training.
    """
    by_both = (WALL_CLOCK, STEPS) if by is None else (by,)
    how = CurveSettings(of=of, episodes=episodes, options=parse_options(options), seed=seed, stochastic=stochastic)
    request = CurveRequest(tournaments, by_both, how, csv_file, plot_file)
    check_files(request)
    session.require_tournaments(settings)

    return session.run(functools.partial(_run, settings, request))


async def _run(settings: Settings, request: CurveRequest, interrupts: Interrupts) -> int:
    """Evaluates the snapshots of all tournaments, writes the files and shows the points."""
    async with session.open_client(settings, Use.EVALUATE, interrupts) as client:
        found = [await find_tournament(client, name, settings) for name in request.names]
        chosen_of = {entry.tournament_id: await snapshots_of(client, entry, request.curve.of) for entry in found}
        points: list[CurvePoint] = []
        failures: dict[str, str] = {}
        known: dict[str, Mapping[str, Any]] = {}
        for tournament in {entry.tournament_id: entry for entry in found}.values():
            snapshots = chosen_of[tournament.tournament_id]
            read, failed = await read_curve(client, tournament, snapshots, request.curve, notify)
            points += read
            failures |= failed
            if settings.as_json:
                known |= await read_hyperparameters(client, tournament, (one.agent_id for one in snapshots))
    environments = {entry.tournament_id: entry.spec.environment.id for entry in found}
    return _answer(settings, request, points, failures, environments, known)


def check_files(request: CurveRequest) -> None:
    """Checks the output files before anything is evaluated.

    Raises:
        InvalidArgument: A folder does not exist, a file is `-`, or the plot has an unknown suffix.
        Unimplemented: matplotlib is not installed.
    """
    for option, path in (("--csv", request.csv), ("--plot", request.plot)):
        if path is not None:
            check_file(path, option)
    if request.plot is not None:
        if request.plot.suffix not in SUFFIXES:
            raise InvalidArgument(
                f"--plot {request.plot}: expected a file name with the suffix {' or '.join(SUFFIXES)}"
            )
        new_figure(1, 1)


def _answer(
    settings: Settings,
    request: CurveRequest,
    points: Sequence[CurvePoint],
    failures: Mapping[str, str],
    environments: Mapping[str, str],
    known: HyperparametersByAgent,
) -> int:
    if not points:
        raise FailedPrecondition(f"no snapshot could be evaluated: {next(iter(failures.values()))}")
    for digest, error in failures.items():
        notify(f"snapshot {digest[:12]} is omitted: {error}")
    if request.csv is not None:
        with whole_file(request.csv, "--csv") as place:
            place.write_text(csv_text(points), encoding="utf-8")
    if request.plot is not None:
        with whole_file(request.plot, "--plot") as place:
            plots.draw(place, points, environments=environments, by=request.by)
    if settings.as_json:
        show_json(json_values(points, failures, known))
    else:
        show(points_table(points))
    for path in (request.csv, request.plot):
        if path is not None:
            notify(f"wrote {path}")
    return EXIT_FAILED if failures else 0


def points_table(points: Sequence[CurvePoint]) -> Table:
    """Returns a table with one row per point."""
    several = len({point.snapshot.tournament_id for point in points}) > 1
    numbers = "time", "steps", "return ± standard error", "deviation"
    names = ("tournament", "curve") if several else ("curve",)
    table = plain_table(*names, "agent", "algorithm", *numbers, right=numbers)
    for (tournament_id, who), curve_points in curves(points).items():
        for point in curve_points:
            deviation = point.standard_deviation
            table.add_row(
                *((tournament_id,) if several else ()),
                formats.short(who, tournament_id),
                formats.short(point.snapshot.agent_id, tournament_id),
                point.snapshot.algorithm,
                formats.duration(point.seconds),
                formats.count(point.environment_steps),
                formats.score(point.mean, point.standard_error),
                NOTHING if deviation is None else formats.number(deviation),
            )
    return table
