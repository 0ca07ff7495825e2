"""Implements `podrace ls`, `events`, `standings` and `stop`."""

import asyncio

import click

from podrace.cli import EXIT_FAILED, session
from podrace.cli.session import find_tournament
from podrace.cli.terminal import formats
from podrace.cli.terminal.labels import label_conditions
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.cli.terminal.plugin_fallbacks import built_in_scores_note
from podrace.cli.views import json_shapes, tables
from podrace.client import Client
from podrace.client.calls.tournaments import END_STATES
from podrace.client.hyperparameters import read_hyperparameters, read_of_champion
from podrace.errors import InvalidArgument
from podrace.tournament.v1.tournament_pb2 import Tournament

STOP_REASON = "stopped by `podrace stop`"


@click.command()
@click.option(
    "--filter", "condition", default="", metavar="FILTER", help="Show only these, for instance 'state = RUNNING'."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Show only those with this label; also KEY!=VALUE, and KEY for any value; repeatable.",
)
@click.option("--order", default="", metavar="FIELDS", help="Order, for instance 'end_time desc'.")
@mesh_options
def ls(settings: Settings, condition: str, labels: tuple[str, ...], order: str) -> int:
    """List the tournaments, newest first.

    FILTER is conditions `FIELD OPERATOR VALUE` connected by AND. Fields: tournament_id, name, state, create_time,
    end_time, owner, namespace, labels.KEY. A value that ends with * matches all that begin with the rest.
    """

    async def query(client: Client) -> int:
        found = await client.list_tournaments(wanted, order)
        if settings.as_json:
            known = await asyncio.gather(*(read_of_champion(client, one) for one in found))
            folders = [session.results_folder(settings, one) for one in found]
            show_json(list(map(json_shapes.listed, found, folders, known)))
        else:
            _show_tournaments(settings, found)
        return 0

    wanted = " AND ".join([*filter(None, [condition]), *label_conditions(labels)])
    if session.has_tournaments(settings):
        return session.run_query(settings, query)
    if settings.as_json:
        show_json([])
    else:
        _show_tournaments(settings, [])
    return 0


def _show_tournaments(settings: Settings, tournaments: list[Tournament]) -> None:
    if tournaments:
        show_result(tables.tournaments_table(tournaments))
    else:
        show_result(f"{settings.where}: there are no tournaments")


@click.command()
@click.argument("tournament")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Show only events of this kind; repeatable.")
@click.option(
    "--filter", "condition", default="", metavar="FILTER", help="Show only these, for instance 'kind = pod_*'."
)
@click.option("--order", default="", metavar="FIELDS", help="Order, for instance 'sequence desc'.")
@mesh_options
def events(settings: Settings, tournament: str, kinds: tuple[str, ...], condition: str, order: str) -> int:
    """Show all events of a tournament with their reasons, oldest first.

    TOURNAMENT is an id, a prefix of one, or `latest`. KIND is a kind of event, such as pod_draining, agent_generated
    or algorithm_left; docs/monitoring.md lists all kinds with their meaning. FILTER is conditions `FIELD OPERATOR
    VALUE` connected by AND. Fields: sequence, time, kind, tournament_id, pod_id, agent_id.
    """

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        every = await client.list_events(found.tournament_id, condition, order)
        chosen = [event for event in every if not kinds or event.kind in kinds]
        if kinds and condition:
            every = await client.list_events(found.tournament_id)
        existing = sorted({event.kind for event in every})
        if missing := [kind for kind in kinds if kind not in existing]:
            kinds_of = f"only events of kind {', '.join(existing)}" if existing else "no events"
            raise InvalidArgument(f"--kind {missing[0]}: {found.tournament_id} has {kinds_of}")
        if settings.as_json:
            show_json([json_shapes.event(event) for event in chosen])
        else:
            table = tables.events_table(chosen, found.tournament_id, dated=True)
            nothing = f"has no event that matches {condition!r}" if condition else "has no events"
            show_result(table if chosen else f"{found.tournament_id} {nothing}")
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)


@click.command()
@click.argument("tournament")
@click.option(
    "--filter", "condition", default="", metavar="FILTER", help="Show only these, for instance 'algorithm = ppo'."
)
@click.option("--order", default="", metavar="FIELDS", help="Order, for instance 'environment_steps desc'.")
@mesh_options
def standings(settings: Settings, tournament: str, condition: str, order: str) -> int:
    """Show the board of a tournament.

    TOURNAMENT is an id, a prefix of one, or `latest`. FILTER is conditions `FIELD OPERATOR VALUE` connected by AND.
    Fields: candidate_id, agent_id, algorithm, rank, score, standard_error, estimate, episodes, environment_steps,
    agent_environment_steps, agent_number, trial, depth, sequence, submit_time.
    """

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        board = await client.list_board(found, condition, order)
        if settings.as_json:
            known = await read_hyperparameters(client, found, (candidate.agent_id for candidate in board))
            show_json([json_shapes.candidate(candidate, known) for candidate in board])
        elif board:
            show_result(tables.standings_table(board, found.tournament_id, title=found.tournament_id))
            if note := built_in_scores_note(board, found.tournament_id):
                show_result(note)
        else:
            nothing = f"has no candidate that matches {condition!r}" if condition else "is empty"
            show_result(f"the board of {found.tournament_id} {nothing}")
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)


@click.command()
@click.argument("tournament")
@mesh_options
def stop(settings: Settings, tournament: str) -> int:
    """Stop a tournament and keep its results.

    TOURNAMENT is an id, a prefix of one, or `latest`. Its pods publish their results and exit. `podrace train --resume`
    continues it.
    """

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        ended = await _stopped(client, found)
        if settings.as_json:
            known = await read_of_champion(client, ended)
            show_json(json_shapes.result(ended, session.results_folder(settings, ended), known))
        else:
            show_result(f"{ended.tournament_id} is {formats.state(ended).lower()}: {ended.reason}")
        return 0 if ended.state in END_STATES else EXIT_FAILED

    session.require_tournaments(settings)
    return session.run_query(settings, query)


async def _stopped(client: Client, tournament: Tournament) -> Tournament:
    """Cancels a tournament and waits until it has ended; one that has already ended is unchanged."""
    if tournament.state in END_STATES:
        return tournament
    tournament = await client.cancel_tournament(tournament.tournament_id, STOP_REASON)
    async for message in client.watch_tournament(tournament.tournament_id, resume_token=0):
        tournament = message.tournament
    return tournament
