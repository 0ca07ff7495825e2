"""Implements `podrace show`: a tournament, or one aspect of its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from podrace.cli.views import pareto as pareto_view
from podrace.cli.views.overview import overview
from podrace.client import Client
from podrace.client.champion import members_of_champion
from podrace.client.compute import summary_of
from podrace.client.hyperparameters import read_hyperparameters
from podrace.client.importance import importance_of
from podrace.client.pareto import SCORE, STEPS, front, parse_measure
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
@click.option(
    "--pareto",
    is_flag=True,
    help="Show the Pareto front: the candidates that no other one dominates in several measures.",
)
@click.option(
    "--measure",
    "measures",
    multiple=True,
    metavar="NAME=max|min",
    help="With --pareto: a measure to compare besides the score; repeatable.  [default: environment_steps=min]",
)
@mesh_options
def show(settings: Settings, tournament: str, **options: Any) -> int:
    """Show a tournament, or one aspect of its results.

    TOURNAMENT is an id, a prefix of one, or `latest`. Without further options, show the tournament with its pods and
    latest events. `podrace show latest --champion --toml` writes a specification for `podrace train`.

    --pareto compares candidates in several measures and does not change how the board ranks them. Measures are
    environment_steps, core_seconds, standard_error, and what the simulator reports for single episodes, such as
    annual_volatility. Where it is known whether a higher or a lower value is better, NAME is enough.
    """
    aspect = Aspect(**options)
    aspect.check(as_json=settings.as_json)

    async def query(client: Client) -> int:
        found = await find_tournament(client, tournament, settings)
        if aspect.champion:
            await _show_champion(settings, client, found, as_toml=aspect.as_toml)
        elif aspect.importance:
            await _show_importance(settings, client, found, aspect.plot)
        elif aspect.pareto:
            await _show_pareto(settings, client, found, aspect.measures)
        else:
            await _show_all(settings, client, found)
        return 0

    session.require_tournaments(settings)
    return session.run_query(settings, query)


@dataclass(frozen=True)
class Aspect:
    """Options of the command."""

    champion: bool
    as_toml: bool
    importance: bool
    plot: Path | None
    pareto: bool
    measures: Sequence[str]

    def check(self, *, as_json: bool) -> None:
        """Checks that the options belong together, and the file of the plot.

        Raises:
            InvalidArgument: They do not, or the folder of the file does not exist.
            Unimplemented: A plot is wanted and matplotlib is not installed.
        """
        wanted = [name for name in ("champion", "importance", "pareto") if getattr(self, name)]
        if len(wanted) > 1:
            raise InvalidArgument(f"show: --{wanted[0]} and --{wanted[1]} cannot be combined; give only one")
        if self.as_toml and not self.champion:
            raise InvalidArgument("show: --toml writes the champion; give --champion too")
        if self.as_toml and as_json:
            raise InvalidArgument("show: --toml and --json are two formats; give only one")
        if self.measures and not self.pareto:
            raise InvalidArgument(f"show: --measure {self.measures[0]} is for --pareto; give that too")
        if self.plot is not None:
            if not self.importance:
                raise InvalidArgument(f"show: --plot {self.plot} draws the importance; give --importance too")
            check_file(self.plot, "--plot")
            new_figure(1, 1)


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


async def _show_pareto(settings: Settings, client: Client, tournament: Tournament, measures: Sequence[str]) -> None:
    """Shows the candidates that are not dominated in the score and some other measures.

    Raises:
        NotFound: There is no candidate yet.
        InvalidArgument: A measure is not recorded, or its direction is not known.
    """
    submissions = await client.list_submissions(tournament)
    if not submissions:
        raise NotFound(f"tournament {tournament.tournament_id} has no candidate yet")
    others = [parse_measure(text, submissions) for text in measures] or [STEPS]
    found = front(submissions, list({one.name: one for one in [SCORE, *others]}.values()))
    if settings.as_json:
        known = await read_hyperparameters(client, tournament, (one.agent_id for one in found.candidates))
        show_json(pareto_view.as_json(found, known))
    else:
        show_result(pareto_view.as_text(found, tournament.tournament_id))
