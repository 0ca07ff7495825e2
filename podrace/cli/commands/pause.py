"""Implements `podrace pause` and `podrace resume`: interrupt a tournament, and continue it, on a mesh that runs."""

from collections.abc import Awaitable, Callable

import click

from podrace.cli import session
from podrace.cli.session import find_tournament
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.cli.views import json_shapes
from podrace.client import Client
from podrace.client.hyperparameters import read_of_champion
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament


@click.command()
@click.argument("tournament")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the events and for `podrace show`.")
@mesh_options
def pause(settings: Settings, tournament: str, reason: str) -> int:
    """Pause a running tournament; its pods publish and exit.

    TOURNAMENT is an id, a prefix of one, or `latest`. Its clock stands still until `podrace resume`. Queued evaluations
    are still played.
    """
    return _change(settings, tournament, lambda client, name: client.pause_tournament(name, reason))


@click.command()
@click.argument("tournament")
@mesh_options
def resume(settings: Settings, tournament: str) -> int:
    """Resume a tournament that was paused or stopped, or that failed.

    TOURNAMENT is an id, a prefix of one, or `latest`. The orchestrator must be running. `podrace train --resume` starts
    one if necessary, and follows the tournament.
    """
    return _change(settings, tournament, lambda client, name: client.resume_tournament(name))


def _change(settings: Settings, tournament: str, change: Callable[[Client, str], Awaitable[Tournament]]) -> int:
    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        changed = await change(client, found.tournament_id)
        if settings.as_json:
            known = await read_of_champion(client, changed)
            show_json(json_shapes.listed(changed, session.results_folder(settings, changed), known))
        else:
            show_result(f"{changed.tournament_id} is {printable(changed.pause_reason) or 'running'}")
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)
