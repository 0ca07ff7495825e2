"""Implements `podrace update`: changes the pool limits or the objective of a running tournament."""

import click

from podrace import config
from podrace.cli import session
from podrace.cli.session import find_tournament
from podrace.cli.terminal import formats
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.cli.views import json_shapes
from podrace.client import Client
from podrace.client.hyperparameters import read_of_champion
from podrace.errors import InvalidArgument
from podrace.specification import resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

CHANGEABLE = ("pool", "objective")


@click.command()
@click.argument("tournament")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    required=True,
    metavar="KEY=VALUE",
    help="A key of pool or objective, for instance pool.maximum_pods=3; repeatable.",
)
@mesh_options
def update(settings: Settings, tournament: str, overrides: tuple[str, ...]) -> int:
    """Change the pool limits or the objective of a running tournament.

    TOURNAMENT is an id, a prefix of one, or `latest`. Surplus pods publish their results and exit.
    """
    changes = read_changes(overrides)

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        changed = await client.update_tournament(found.tournament_id, changes)
        if settings.as_json:
            known = await read_of_champion(client, changed)
            show_json(json_shapes.listed(changed, session.results_folder(settings, changed), known))
        else:
            pool = changed.spec.pool
            most = f"at most {pool.maximum_pods}" if pool.HasField("maximum_pods") else "no upper limit"
            pods = f"at least {formats.things(pool.minimum_pods, 'pod')}, {most}"
            show_result(f"changed {changed.tournament_id}: {pods}; {'; '.join(overrides)}")
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)


def read_changes(overrides: tuple[str, ...]) -> TournamentSpec:
    """Returns a specification in which only the changed keys are set.

    Raises:
        InvalidArgument: A key cannot be changed while a tournament runs, or a value is invalid.
    """
    values: dict[str, object] = {}
    for override in overrides:
        config.assign(values, *config.split_override(override))
    others = [key for key in values if key not in CHANGEABLE]
    if others:
        raise InvalidArgument(f"--set {others[0]}: only {' and '.join(CHANGEABLE)} can be changed while it runs")
    return resolve.parse(values, source="--set")
