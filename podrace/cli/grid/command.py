"""Implements `podrace grid`: runs variants of a specification as tournaments and compares their results."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from podrace import config
from podrace.cli import EXIT_FAILED, EXIT_INTERRUPTED, session
from podrace.cli.grid import plots, results
from podrace.cli.grid.axes import grid_name, make_cells, parse_axes
from podrace.cli.grid.results import Grid
from podrace.cli.grid.run import Runner
from podrace.cli.grid.screen import GridLines, GridTable
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import console, notify, show, show_json
from podrace.errors import Unimplemented
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use

HELP = """Run variants of a specification and compare their results.

\b
podrace grid examples/cartpole.toml --axes algorithm=ppo,a2c seed=0..4
podrace grid examples/sac.toml strategy=truncation,random-search pod.cores=1,2

An axis is a key of the specification with its values; 0..4 means 0,1,2,3,4. Every combination of values is a
tournament. Short names: algorithm (the only algorithm, with its hyperparameters of SPEC), strategy, environment,
seed. The table and the plot show means over seeds with 95 % bootstrap intervals. Times count from the first agent.

After Ctrl-C, a crash or a failed tournament, run the same command again: complete tournaments are not repeated,
even if the grid has grown, and stopped or failed ones are resumed. Another --set name=... starts a new grid.
"""


@click.command(help=HELP)
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("axes", nargs=-1, metavar="KEY=VALUES...")
@click.option("--axes", "axes_follow", is_flag=True, expose_value=False, help="Optional marker before the axes.")
@click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override a key of SPEC; repeatable.")
@click.option(
    "--parallel",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of tournaments to run at once. Their pods share the cores, and pool.minimum_pods may overcommit them:"
    " times are comparable only with 1, or if the pods of all tournaments fit.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder for the results.  [default: grids/<name> in the home]"
)
@mesh_options
def grid(
    settings: Settings, spec: Path, axes: Sequence[str], overrides: Sequence[str], parallel: int, output: Path | None
) -> int:
    """Runs the tournaments of a grid and shows their results."""
    parsed = parse_axes(axes)
    values = config.read_toml(spec)
    for override in overrides:
        config.assign(values, *config.split_override(override))
    cells = make_cells(values, parsed, source=str(spec))
    name = grid_name(cells, parsed)
    folder = output.expanduser().resolve() if output else Folders.of(settings.home).home / "grids" / name
    wanted = Grid(name, tuple(parsed), tuple(cells), folder)
    return session.run(functools.partial(_run, settings, wanted, parallel))


async def _run(settings: Settings, wanted: Grid, parallel: int, interrupts: Interrupts) -> int:
    """Runs the cells on one mesh, and shows the results after the mesh has stopped."""
    # Results are written in any case, so check early that the folders are writable.
    Folders.of(settings.home).make_home()
    results.write(wanted)
    screen = GridTable(console(stderr=True)) if sys.stderr.isatty() else GridLines(notify)
    try:
        async with session.open_client(settings, Use.TRAIN, interrupts, notify=screen.notify) as client:
            with interrupts.polite() as stop, screen:
                await Runner(settings, client, wanted, screen, stop).run(parallel=parallel)
    finally:
        if not wanted.complete:
            notify(f"{_done(wanted)}; run the same command to continue")
    _conclude(settings, wanted)
    if interrupts.count:
        return EXIT_INTERRUPTED
    return 0 if wanted.complete else EXIT_FAILED


def _done(wanted: Grid) -> str:
    done = sum(wanted.outcome(cell).good for cell in wanted.cells)
    return f"{wanted.name}: {done} of {len(wanted.cells)} cells are done"


def _conclude(settings: Settings, wanted: Grid) -> None:
    """Writes the plot and shows the results."""
    combinations = wanted.combinations()
    if any(row.scored for row in combinations):
        try:
            plots.draw(wanted.folder / "grid.png", combinations, title=wanted.name)
        except Unimplemented as error:
            notify(error.message)
    if settings.as_json:
        show_json(results.grid_values(wanted))
        return
    show(results.render(wanted))
    for cell in wanted.cells:
        outcome = wanted.outcome(cell)
        if not outcome.good and outcome.reason:
            show(f"{cell.title}: {outcome.state}: {outcome.reason}")
    show("")
    show(f"results in {wanted.folder}")
    for file in sorted(wanted.folder.iterdir()):
        show(f"  {file.name}")
