"""`podrace train`: from a specification, or a tournament that was stopped, to results."""

import asyncio
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from podrace.cli import EXIT_FAILED, EXIT_INTERRUPTED, session
from podrace.cli.commands.evaluate import find_checkpoint
from podrace.cli.results.report import make_report, render
from podrace.cli.terminal import formats
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import console, show, show_json, tell
from podrace.cli.terminal.plugin_fallbacks import describe_fallbacks
from podrace.cli.views import json_shapes
from podrace.cli.views.live_table import LiveTable
from podrace.cli.views.plain_lines import PlainLines
from podrace.cli.views.tables import best_score
from podrace.client import Client, resolve
from podrace.client.follow import TournamentView, follow_to_end, wait_for_pods_to_exit
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.mesh.home import Folders
from podrace.mesh.home_lock import Use
from podrace.specification.files import load, to_toml, to_values
from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_CANCELLED,
    TOURNAMENT_STATE_COMPLETED,
    TOURNAMENT_STATE_FAILED,
    Tournament,
    TournamentSpec,
)

PODS_GO_SECONDS = 30.0
AGENT_FAILED = "agent_failed"
"""Kind of the event that an agent failed."""
STOP_REASON = "stopped from the keyboard"


@click.command()
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option("--resume", metavar="TOURNAMENT", default="", help="Go on with a tournament that was stopped.")
@click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override a key of SPEC; repeatable.")
@click.option(
    "--ancestor", default="", metavar="AGENT", help="First agents go on from this one, or from a tournament's champion."
)
@click.option("--print-config", is_flag=True, help="Print the resolved specification as TOML and exit.")
@mesh_options
def train(
    settings: Settings, spec: Path | None, resume: str, overrides: Sequence[str], ancestor: str, print_config: bool
) -> int:
    """Train a tournament and show it live, or go on with one.

    SPEC is a TOML file. Ctrl-C stops the tournament and keeps everything; Ctrl-C again does not wait for its pods.
    """
    _check(spec, resume, [*overrides, *filter(None, [ancestor])], print_config)
    if spec is None:
        session.require_tournaments(settings)
        return session.run(functools.partial(_train, settings, resume))
    specification = load(spec, overrides)
    if print_config:
        show_json(to_values(specification)) if settings.as_json else click.echo(to_toml(specification))
        return 0
    return session.run(functools.partial(_train, settings, specification, ancestor=ancestor))


def _check(spec: Path | None, resume: str, overrides: Sequence[str], print_config: bool) -> None:
    if spec is None and not resume:
        raise InvalidArgument(
            "train: name a specification, for instance examples/cartpole.toml, or --resume TOURNAMENT"
        )
    if spec is not None and resume:
        raise InvalidArgument(
            f"train: {spec} and --resume {resume}: a tournament keeps its specification; give only one"
        )
    if resume and (overrides or print_config):
        raise InvalidArgument(
            "train: --set and --print-config go with a specification, as does --ancestor, and not with --resume"
        )


async def _train(
    settings: Settings, wanted: TournamentSpec | str, interrupts: Interrupts, *, ancestor: str = ""
) -> int:
    """Begins or goes on, follows to the end, reports; the mesh, if it is ours, ends with it."""
    # Results go there in any case: an unwritable home must not be found out at the end.
    Folders.of(settings.home).make_home()
    screen = LiveTable(console(stderr=True)) if sys.stderr.isatty() else PlainLines(tell)
    async with session.open_client(settings, Use.TRAIN, interrupts, notify=screen.tell) as client:
        if ancestor and isinstance(wanted, TournamentSpec):
            _, checkpoint = await find_checkpoint(client, ancestor, where=settings.where)
            wanted.evolution.ancestor_agent_id = checkpoint.agent_id
        begun = await _begin(settings, client, wanted)
        tournament = await _follow(settings, client, begun, screen, interrupts)
        if tournament.state == TOURNAMENT_STATE_COMPLETED and not interrupts.count:
            await _report(settings, client, tournament)
    return _conclude(settings, tournament, interrupts)


async def _begin(settings: Settings, client: Client, wanted: TournamentSpec | str) -> Tournament:
    """Creates the tournament, or goes on with the one that `wanted` names.

    Raises:
        FailedPrecondition: Its objective is met: there is nothing to go on with.
    """
    if isinstance(wanted, TournamentSpec):
        return await client.create_tournament(wanted)
    tournaments = {tournament.tournament_id: tournament for tournament in await client.list_tournaments()}
    tournament = tournaments[resolve.resolve_tournament(wanted, list(tournaments), where=settings.where)]
    if tournament.state == TOURNAMENT_STATE_COMPLETED:
        raise FailedPrecondition(
            f"tournament {tournament.tournament_id} is complete ({tournament.reason}): there is nothing to resume;"
            f" its results are in {_folder(settings, tournament)}"
        )
    return await client.resume_tournament(tournament.tournament_id)


async def _follow(
    settings: Settings, client: Client, tournament: Tournament, screen: LiveTable | PlainLines, interrupts: Interrupts
) -> Tournament:
    """Shows the tournament until it has ended; the first interrupt ends it, the second ends the waiting for that."""
    view = TournamentView(tournament)
    try:
        with interrupts.polite() as stop, screen:
            await follow_to_end(client, view, draw=screen.draw, stop=stop, stop_reason=STOP_REASON)
            if stop.is_set():
                await wait_for_pods_to_exit(client, view, deadline_seconds=PODS_GO_SECONDS)
                screen.draw(view)
    except asyncio.CancelledError:
        tell(_how_to_go_on(settings, tournament))
        raise
    return view.tournament


async def _report(settings: Settings, client: Client, tournament: Tournament) -> None:
    tournament_id, folder = tournament.tournament_id, _folder(settings, tournament)
    tell(f"{tournament_id} is complete: {tournament.reason}")
    await _tell_failures(client, tournament)
    for fallbacks in await client.count_fallbacks(tournament):
        tell(describe_fallbacks(fallbacks))
    if not tournament.champion_manifest_digest:
        tell("no agent was scored before the end: nothing to report")
        return
    report = await make_report(client, tournament, folder, tell=tell)
    if settings.as_json:
        return
    champion = formats.short(tournament.best_agent_id, tournament_id)
    steps = f"{formats.count(tournament.environment_steps)} steps over {formats.agents(tournament)}"
    show(f"champion {champion}: {best_score(tournament)} after {steps}")
    show(render(report))
    show(f"\nresults in {folder}")
    for file in sorted(folder.iterdir()):
        show(f"  {file.name}")


async def _tell_failures(client: Client, tournament: Tournament) -> None:
    """Agents that failed took no part in what follows: says so, and why the last of them did."""
    if tournament.failed_agents:
        events = await client.list_events(tournament.tournament_id)
        last = next((event.message for event in reversed(events) if event.kind == AGENT_FAILED), "")
        tell(f"failed: {tournament.failed_agents} of {formats.things(tournament.agents, 'agent')}; the last: {last}")


def _conclude(settings: Settings, tournament: Tournament, interrupts: Interrupts) -> int:
    """Says what is left to say when the mesh is gone.

    Raises:
        FailedPrecondition: The tournament failed; the line says why.
    """
    if settings.as_json:
        show_json(json_shapes.result(tournament, _folder(settings, tournament)))
    if tournament.state == TOURNAMENT_STATE_FAILED:
        raise FailedPrecondition(f"tournament {tournament.tournament_id} failed: {tournament.reason}")
    if tournament.state == TOURNAMENT_STATE_CANCELLED:
        tell(f"{tournament.tournament_id} is cancelled: {tournament.reason}; {_how_to_go_on(settings, tournament)}")
    if interrupts.count:
        return EXIT_INTERRUPTED
    return 0 if tournament.state == TOURNAMENT_STATE_COMPLETED else EXIT_FAILED


def _folder(settings: Settings, tournament: Tournament) -> Path:
    return Folders.of(settings.home).tournament(tournament.tournament_id)


def _how_to_go_on(settings: Settings, tournament: Tournament) -> str:
    where = "" if settings.orchestrator else f"everything lies in {Folders.of(settings.home).home}; "
    return f"{where}go on with: podrace train --resume {tournament.tournament_id}{settings.arguments}"
