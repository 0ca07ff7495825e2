"""Implements `podrace show`: a tournament, or one aspect of its results."""

import click

from podrace.cli import session
from podrace.cli.results import champion_views
from podrace.cli.results.champion import read_champion
from podrace.cli.results.champion_toml import champion_toml
from podrace.cli.session import find_tournament, results_folder
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show as show_result
from podrace.cli.terminal.output import show_json
from podrace.cli.views import json_shapes
from podrace.cli.views.overview import overview
from podrace.client import Client
from podrace.client.champion import members_of_champion
from podrace.client.compute import summary_of
from podrace.client.hyperparameters import read_hyperparameters
from podrace.errors import InvalidArgument
from podrace.tournament.v1.tournament_pb2 import Tournament

EVENTS_SHOWN = 10


@click.command()
@click.argument("tournament")
@click.option("--champion", is_flag=True, help="Show the champion's hyperparameters, and how they changed.")
@click.option("--toml", "as_toml", is_flag=True, help="With --champion: write a specification that trains with them.")
@mesh_options
def show(settings: Settings, tournament: str, champion: bool, as_toml: bool) -> int:
    """Show a tournament, or one aspect of its results.

    TOURNAMENT is an id, a prefix of one, or `latest`. Without further options, show the tournament with its pods and
    latest events. `podrace show latest --champion --toml` writes a specification for `podrace train`.
    """
    if as_toml and not champion:
        raise InvalidArgument("show: --toml writes the champion; give --champion too")
    if as_toml and settings.as_json:
        raise InvalidArgument("show: --toml and --json are two formats; give only one")

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        if champion:
            await _show_champion(settings, client, found, as_toml=as_toml)
        else:
            await _show_all(settings, client, found)
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)


async def _show_all(settings: Settings, client: Client, tournament: Tournament) -> None:
    pods = await client.list_pods(tournament.tournament_id)
    events = await client.list_events(tournament.tournament_id)
    statistics = await client.get_all_statistics(tournament)
    evaluations = [entry.evaluation for entry in await client.list_evaluations(tournament.tournament_id)]
    compute = summary_of(tournament, statistics, events, evaluations)
    latest, algorithms = events[-EVENTS_SHOWN:], list(statistics.algorithms)
    fallbacks = await client.count_fallbacks(tournament)
    if settings.as_json:
        agents = [*(one.agent_id for one in members_of_champion(tournament)), *(pod.agent_id for pod in pods)]
        known = await read_hyperparameters(client, tournament, agents)
        folder = results_folder(settings, tournament)
        show_json(json_shapes.shown(tournament, folder, pods, latest, algorithms, compute, fallbacks, known))
    else:
        show_result(overview(tournament, pods, latest, algorithms, compute, fallbacks))


async def _show_champion(settings: Settings, client: Client, tournament: Tournament, *, as_toml: bool) -> None:
    members = await read_champion(client, tournament)
    if as_toml:
        click.echo(champion_toml(tournament, members), nl=False)
    elif settings.as_json:
        show_json(champion_views.as_json(tournament, members))
    else:
        show_result(champion_views.as_text(tournament, members))
