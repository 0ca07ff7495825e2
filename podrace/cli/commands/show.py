"""Implements `podrace show`: a tournament, or one aspect of its results."""

from pathlib import Path

import click

from podrace.cli import session
from podrace.cli.results import champion_views
from podrace.cli.results.champion import read_champion
from podrace.cli.results.champion_toml import champion_toml
from podrace.cli.results.importance_plot import draw_importance
from podrace.cli.results.plots import new_figure
from podrace.cli.session import find_tournament, results_folder
from podrace.cli.terminal.atomic_file import check_file
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import notify, show_json
from podrace.cli.terminal.output import show as show_result
from podrace.cli.views import importance as importance_view
from podrace.cli.views import json_shapes
from podrace.cli.views.overview import overview
from podrace.client import Client
from podrace.client.champion import members_of_champion
from podrace.client.compute import summary_of
from podrace.client.hyperparameters import read_hyperparameters
from podrace.client.importance import importance_of
from podrace.errors import InvalidArgument, NotFound
from podrace.tournament.v1.tournament_pb2 import Tournament

EVENTS_SHOWN = 10


@click.command()
@click.argument("tournament")
@click.option("--champion", is_flag=True, help="Show the champion's hyperparameters, and how they changed.")
@click.option("--toml", "as_toml", is_flag=True, help="With --champion: write a specification that trains with them.")
@click.option("--importance", is_flag=True, help="Show which hyperparameters explain the scores of trials.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --importance: draw it as PNG.",
)
@mesh_options
def show(
    settings: Settings, tournament: str, champion: bool, as_toml: bool, importance: bool, plot: Path | None
) -> int:
    """Show a tournament, or one aspect of its results.

    TOURNAMENT is an id, a prefix of one, or `latest`. Without further options, show the tournament with its pods and
    latest events. `podrace show latest --champion --toml` writes a specification for `podrace train`.
    """
    if champion and importance:
        raise InvalidArgument("show: --champion and --importance are two aspects; give only one")
    if as_toml and not champion:
        raise InvalidArgument("show: --toml writes the champion; give --champion too")
    if as_toml and settings.as_json:
        raise InvalidArgument("show: --toml and --json are two formats; give only one")
    if plot is not None:
        if not importance:
            raise InvalidArgument(f"show: --plot {plot} draws the importance; give --importance too")
        check_file(plot, "--plot")
        new_figure(1, 1)

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        if champion:
            await _show_champion(settings, client, found, as_toml=as_toml)
        elif importance:
            await _show_importance(settings, client, found, plot)
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


async def _show_importance(settings: Settings, client: Client, tournament: Tournament, plot: Path | None) -> None:
    """Shows the importance of hyperparameters.

    Raises:
        NotFound: No trial has a score yet.
    """
    agents = await client.list_agents(tournament)
    found = importance_of(tournament.spec, agents, await client.list_submissions(tournament))
    if not found:
        raise NotFound(f"tournament {tournament.tournament_id} has no candidate yet")
    if settings.as_json:
        show_json(importance_view.as_json(found))
    else:
        show_result(importance_view.as_text(found))
    if plot is not None:
        drawn = draw_importance(plot, tournament.spec, found, title=tournament.tournament_id)
        notify(f"wrote {plot}" if drawn else "there is nothing to draw: no hyperparameter has different values")
