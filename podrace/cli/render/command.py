"""Implements `podrace render`. Drawing happens in a child process, which has the libraries of the simulators."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from podrace.cli import session
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import check_file, whole_file
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import SEED_RANGE, FiniteRange, Settings, mesh_options, parse_options
from podrace.cli.terminal.output import show, show_json
from podrace.client.evaluating import evaluation_options
from podrace.client.named_checkpoints import find_checkpoints
from podrace.client.rendering import EpisodeSettings, rendered, rendering_request, require_simulators
from podrace.errors import InvalidArgument
from podrace.mesh.home_lock import Use

SUFFIXES = (".gif", ".mp4", ".webp")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("subject", metavar="TOURNAMENT|CANDIDATE")
@click.option(
    "--file",
    "file",
    type=_FILE,
    metavar="FILE.gif|mp4|webp",
    help="File to write.  [default: ID.gif]",
)
@click.option("--option", "options", multiple=True, metavar="K=V", help="Option of the environment; repeatable.")
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Seed of the episode.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the most likely one.")
@click.option(
    "--steps", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Maximum number of steps."
)
@click.option(
    "--pictures", type=click.IntRange(2, 2000), default=300, show_default=True, help="Maximum number of frames."
)
@click.option("--fps", type=FiniteRange(1, 50), default=30.0, show_default=True, help="Steps shown per second.")
@mesh_options
def render(
    settings: Settings,
    subject: str,
    file: Path | None,
    options: Sequence[str],
    seed: int,
    stochastic: bool,
    steps: int,
    pictures: int,
    fps: float,
) -> int:
    """Render one episode of a champion or another candidate.

    For Gymnasium environments, the classic tasks and mujoco: tasks, the animation shows the environment; for the
    simulator stocks, it shows the value of the account. Longer episodes have fewer frames per second. TOURNAMENT and
    CANDIDATE are those of `podrace evaluate`.
    """
    changes = parse_options(options)
    if file is not None:
        _check(file)
    session.require_tournaments(settings)
    require_simulators()

    async def command(interrupts: Interrupts) -> int:
        async with session.open_client(settings, Use.QUERY, interrupts) as client:
            tournament, checkpoints = await find_checkpoints(client, subject, where=settings.where)
            target = file or Path(f"{tournament.tournament_id}.gif")
            _check(target)
            with whole_file(target, "--file") as place:
                changed = evaluation_options(tournament, changes)
                how = EpisodeSettings(changed, seed, stochastic, steps, pictures, fps)
                trusted = not settings.orchestrator
                facts = await rendered(
                    rendering_request(tournament, checkpoints, how, place, target.suffix, trusted=trusted)
                )
        if settings.as_json:
            show_json(facts | {"tournament_id": tournament.tournament_id, "seed": seed, "file": str(target)})
        else:
            show(_line(facts, seed, target))
        return 0

    return session.run(command)


def _check(path: Path) -> None:
    check_file(path, "--file")
    if path.suffix not in SUFFIXES:
        raise InvalidArgument(
            f"--file {path}: expected a file name with the suffix {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )


def _line(facts: Mapping[str, Any], seed: int, target: Path) -> str:
    end = "" if facts["ended"] else ", cut off"
    steps = formats.things(facts["steps"], "step")
    return f"{target}: return {formats.number(facts['episode_return'])} in {steps}{end} (seed {seed})"
