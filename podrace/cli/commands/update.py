"""Implements `podrace update`: changes the pool limits or the objective of a running tournament, or labels of any."""

import click

from podrace import config
from podrace.cli import session
from podrace.cli.session import find_tournament
from podrace.cli.terminal import formats
from podrace.cli.terminal.labels import read_labels
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.cli.views import json_shapes
from podrace.client import Client
from podrace.client.hyperparameters import read_of_champion
from podrace.errors import InvalidArgument
from podrace.listing.labels import check_labels
from podrace.specification import resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

CHANGEABLE = ("pool", "objective")


@click.command()
@click.argument("tournament")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of pool or objective, for instance pool.maximum_pods=3; repeatable.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a label, or remove it with KEY-; also of a tournament that has ended; repeatable.",
)
@mesh_options
def update(settings: Settings, tournament: str, overrides: tuple[str, ...], labels: tuple[str, ...]) -> int:
    """Change the pool limits or the objective of a running tournament, or the labels of any.

    TOURNAMENT is an id, a prefix of one, or `latest`. Surplus pods publish their results and exit.
    """
    if not overrides and not labels:
        raise InvalidArgument("update: nothing to change; name it with --set KEY=VALUE or --label KEY=VALUE")
    changes, (given, removed) = read_changes(overrides), read_labels(labels)
    check_labels(dict.fromkeys(removed, ""))

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        changed = found
        # Checked before anything changes, because limits and labels are changed by two calls.
        kept = {key: value for key, value in found.labels.items() if key not in removed}
        check_labels(kept | given)
        if overrides:
            changed = await client.update_tournament(found.tournament_id, changes)
        if labels:
            changed = await client.label_tournament(found.tournament_id, given, removed)
        if settings.as_json:
            known = await read_of_champion(client, changed)
            show_json(json_shapes.listed(changed, session.results_folder(settings, changed), known))
        else:
            pool = changed.spec.pool
            most = f"at most {pool.maximum_pods}" if pool.HasField("maximum_pods") else "no upper limit"
            pods = f"at least {formats.things(pool.minimum_pods, 'pod')}, {most}"
            show_result(f"changed {changed.tournament_id}: {pods}; {'; '.join([*overrides, *labels])}")
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
