"""Implements `podrace delete`: deletes a tournament that has ended, with its checkpoints, events and logs."""

import click

from podrace.cli import session
from podrace.cli.session import find_tournament
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.client import Client
from podrace.errors import InvalidArgument


@click.command()
@click.argument("tournament")
@click.option("--archive", is_flag=True, help="Archive its records and its champion in the checkpoint store first.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@mesh_options
def delete(settings: Settings, tournament: str, archive: bool, yes: bool) -> int:
    """Delete a tournament that has ended, with its checkpoints, events and logs.

    TOURNAMENT is an id, a prefix of one, or `latest`. It cannot be restored; `podrace archive` reads what --archive
    has kept. Its folder of results on this machine stays.
    """
    if settings.as_json and not yes:
        raise InvalidArgument("--json: cannot ask for confirmation; add --yes")

    async def query(client: Client, interrupts: Interrupts) -> int:
        found = await find_tournament(client, tournament, settings)
        name = found.tournament_id
        if not yes:
            with interrupts.raised():
                click.confirm(f"Delete {name} with the checkpoints of {found.agents} agents?", abort=True, err=True)
        await client.delete_tournament(name, archive=archive)
        if settings.as_json:
            show_json({"tournament_id": name, "deleted": True})
        else:
            show_result(f"deleted {name}")
        return 0

    session.require_tournaments(settings)
    return session.run_asking_query(settings, query)
