"""Implements `podrace train`: trains a tournament from a specification, or resumes one."""

import asyncio
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from podrace.cli import EXIT_FAILED, EXIT_INTERRUPTED, session
from podrace.cli.results.report import REPORT_FILE, make_report, render
from podrace.cli.terminal import formats
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.labels import read_labels
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import console, notify, show, show_json
from podrace.cli.terminal.plugin_fallbacks import describe_fallbacks
from podrace.cli.views import json_shapes
from podrace.cli.views.live_table import LiveTable
from podrace.cli.views.plain_lines import PlainLines
from podrace.cli.views.tables import best_score, champion_name, score_source
from podrace.client import Client, resolve
from podrace.client.follow import TournamentView, follow_to_end, wait_for_pods_to_exit
from podrace.client.hyperparameters import HyperparametersByAgent, read_of_champion
from podrace.client.named_checkpoints import find_checkpoints
from podrace.errors import FailedPrecondition, FieldViolation, InvalidArgument
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

PODS_EXIT_SECONDS = 30.0
"""Time limit for the pods of a cancelled tournament to exit."""
AGENT_FAILED = "agent_failed"
"""Kind of the event that reports a failed agent."""
STOP_REASON = "stopped from the keyboard"


@click.command()
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option(
    "--resume",
    metavar="TOURNAMENT",
    default="",
    help="Resume a stopped, paused or failed tournament, or make the missing report of a complete one.",
)
@click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override a key of SPEC; repeatable.")
@click.option(
    "--ancestor",
    default="",
    metavar="AGENT",
    help="Start the first agents from this agent, or from the champion of a tournament.",
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the tournament; repeatable.")
@click.option("--print-config", is_flag=True, help="Print the resolved specification as TOML and exit.")
@click.option("--check", "only_check", is_flag=True, help="Check the specification where it would run, and exit.")
@mesh_options
def train(
    settings: Settings,
    spec: Path | None,
    resume: str,
    overrides: Sequence[str],
    ancestor: str,
    labels: Sequence[str],
    print_config: bool,
    only_check: bool,
) -> int:
    """Train a tournament and show it live, or resume one.

    SPEC is a TOML file. Ctrl-C stops the tournament and keeps its results. A second Ctrl-C does not wait for its pods.
    """
    _check(
        spec, resume, [*overrides, *filter(None, [ancestor]), *labels], print_config=print_config, only_check=only_check
    )
    given, removed = read_labels(labels)
    if removed:
        raise InvalidArgument(f"--label {removed[0]}-: a new tournament has no label to remove")
    if not print_config and not only_check:
        session.require_training(settings)
    if spec is None:
        session.require_tournaments(settings)
        return session.run(functools.partial(_train, settings, resume))
    specification = load(spec, overrides)
    if print_config:
        show_json(to_values(specification)) if settings.as_json else click.echo(to_toml(specification))
        return 0
    if only_check:
        return session.run(functools.partial(_only_check, settings, specification))
    return session.run(functools.partial(_train, settings, specification, ancestor=ancestor, labels=given))


async def _only_check(settings: Settings, specification: TournamentSpec, interrupts: Interrupts) -> int:
    """Lets the orchestrator check a specification, and prints everything that is wrong with it."""
    violations: Sequence[FieldViolation] = ()
    unchecked: list[str] = []
    async with session.open_client(settings, Use.TRAIN, interrupts) as client:
        try:
            _, unchecked = await client.check_specification(specification)
        except InvalidArgument as error:
            if not error.violations:
                raise
            violations = error.violations
    if settings.as_json:
        found = [{"key": one.field, "problem": one.problem} for one in violations]
        show_json({"valid": not violations, "violations": found, "unchecked": unchecked})
    else:
        for violation in violations:
            show(str(violation))
        for line in unchecked:
            notify(f"not checked: {line}")
        if not violations:
            show("the specification can be trained here")
    return EXIT_FAILED if violations else 0


def _check(spec: Path | None, resume: str, overrides: Sequence[str], *, print_config: bool, only_check: bool) -> None:
    if spec is None and not resume:
        raise InvalidArgument(
            "train: name a specification, for instance examples/cartpole.toml, or --resume TOURNAMENT"
        )
    if print_config and only_check:
        raise InvalidArgument("train: --print-config and --check: give only one of them")
    if spec is not None and resume:
        raise InvalidArgument(
            f"train: {spec} and --resume {resume}: a tournament keeps its specification; give only one"
        )
    if resume and (overrides or print_config or only_check):
        raise InvalidArgument(
            "train: --set, --label, --print-config, --check and --ancestor need a specification and cannot be used with"
            " --resume"
        )


async def _train(
    settings: Settings,
    wanted: TournamentSpec | str,
    interrupts: Interrupts,
    *,
    ancestor: str = "",
    labels: Mapping[str, str] | None = None,
) -> int:
    """Creates or resumes a tournament, follows it to its end, and writes its report."""
    # Results are written to the home in any case, so check early that it is writable.
    Folders.of(settings.home).make_home()
    screen = LiveTable(console(stderr=True)) if sys.stderr.isatty() else PlainLines(notify)
    async with session.open_client(settings, Use.TRAIN, interrupts, notify=screen.notify) as client:
        if ancestor and isinstance(wanted, TournamentSpec):
            _, checkpoints = await find_checkpoints(client, ancestor, where=settings.where)
            wanted.evolution.ancestor_agent_id = checkpoints[0].agent_id
        begun = await _begin(settings, client, wanted, labels)
        tournament = await _follow(settings, client, begun, screen, interrupts)
        if tournament.state == TOURNAMENT_STATE_COMPLETED and not interrupts.count:
            await _report(settings, client, tournament)
        known = await read_of_champion(client, tournament) if settings.as_json else {}
    return _conclude(settings, tournament, known, interrupts)


async def _begin(
    settings: Settings, client: Client, wanted: TournamentSpec | str, labels: Mapping[str, str] | None
) -> Tournament:
    """Creates a tournament from a specification, or resumes the one that `wanted` names.

    One that is complete is returned as it is if its report is missing: it ended after its command did, or the report
    failed.

    Raises:
        FailedPrecondition: The tournament is complete, and has its report.
    """
    if isinstance(wanted, TournamentSpec):
        return await client.create_tournament(wanted, labels=labels)
    tournaments = {tournament.tournament_id: tournament for tournament in await client.list_tournaments()}
    tournament = tournaments[resolve.resolve_tournament(wanted, list(tournaments), where=settings.where)]
    if tournament.state == TOURNAMENT_STATE_COMPLETED:
        folder = session.results_folder(settings, tournament)
        if (folder / REPORT_FILE).exists():
            raise FailedPrecondition(
                f"tournament {tournament.tournament_id} is complete ({tournament.reason}) and cannot be resumed;"
                f" its results are in {folder}"
            )
        return tournament
    return await client.resume_tournament(tournament.tournament_id)


async def _follow(
    settings: Settings, client: Client, tournament: Tournament, screen: LiveTable | PlainLines, interrupts: Interrupts
) -> Tournament:
    """Shows the tournament until it has ended. The first interrupt cancels it, the second stops waiting for it."""
    view = TournamentView(tournament)
    try:
        with interrupts.polite() as stop, screen:
            await follow_to_end(client, view, draw=screen.draw, stop=stop, stop_reason=STOP_REASON)
            if stop.is_set():
                await wait_for_pods_to_exit(client, view, deadline_seconds=PODS_EXIT_SECONDS)
                screen.draw(view)
    except asyncio.CancelledError:
        notify(_how_to_resume(settings, tournament))
        raise
    return view.tournament


async def _report(settings: Settings, client: Client, tournament: Tournament) -> None:
    tournament_id, folder = tournament.tournament_id, session.results_folder(settings, tournament)
    notify(f"{tournament_id} is complete: {tournament.reason}")
    await _report_failures(client, tournament)
    for fallbacks in await client.count_fallbacks(tournament):
        notify(describe_fallbacks(fallbacks))
    if not tournament.champion_manifest_digest:
        notify("no agent was scored before the end, so there is no report")
        return
    report = await make_report(client, tournament, folder, orchestrator=settings.orchestrator, notify=notify)
    if settings.as_json:
        return
    steps = f"{formats.count(tournament.environment_steps)} steps over {formats.agents(tournament)}"
    show(f"champion {champion_name(tournament)}: {best_score(tournament)} after {steps}")
    if source := score_source(tournament):
        show(f"its score is {source}")
    show(render(report))
    show("")
    show(f"results in {folder}")
    for file in sorted(folder.iterdir()):
        show(f"  {file.name}")


async def _report_failures(client: Client, tournament: Tournament) -> None:
    """Reports how many agents failed, and why the last of them did."""
    if tournament.failed_agents:
        events = await client.list_events(tournament.tournament_id)
        last = next((event.message for event in reversed(events) if event.kind == AGENT_FAILED), "")
        notify(f"failed: {tournament.failed_agents} of {formats.things(tournament.agents, 'agent')}; the last: {last}")


def _conclude(settings: Settings, tournament: Tournament, known: HyperparametersByAgent, interrupts: Interrupts) -> int:
    """Reports how the tournament ended, after the mesh has stopped, and returns the exit code.

    Raises:
        FailedPrecondition: The tournament failed; the message contains the reason.
    """
    if settings.as_json:
        show_json(json_shapes.result(tournament, session.results_folder(settings, tournament), known))
    if tournament.state == TOURNAMENT_STATE_FAILED:
        raise FailedPrecondition(f"tournament {tournament.tournament_id} failed: {tournament.reason}")
    if tournament.state == TOURNAMENT_STATE_CANCELLED:
        notify(f"{tournament.tournament_id} is cancelled: {tournament.reason}; {_how_to_resume(settings, tournament)}")
    if interrupts.count:
        return EXIT_INTERRUPTED
    return 0 if tournament.state == TOURNAMENT_STATE_COMPLETED else EXIT_FAILED


def _how_to_resume(settings: Settings, tournament: Tournament) -> str:
    where = "" if settings.orchestrator else f"all data is in {Folders.of(settings.home).home}; "
    return f"{where}resume with: podrace train --resume {tournament.tournament_id}{settings.arguments}"
