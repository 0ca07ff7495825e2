"""Implements `podrace evaluate`: has a pod evaluate a published checkpoint."""

from collections.abc import Sequence

import click

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli import session
from podrace.cli.results.scoring import evaluated, headline
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import EPISODE_RANGE, SEED_RANGE, Settings, mesh_options, parse_options
from podrace.cli.terminal.output import show, show_json
from podrace.cli.views import json_shapes
from podrace.cli.views.tables import metrics_table
from podrace.client.evaluating import evaluation_options
from podrace.client.hyperparameters import HyperparametersByAgent, read_hyperparameters
from podrace.client.named_checkpoints import find_checkpoints
from podrace.mesh.home_lock import Use
from podrace.tournament.v1.tournament_pb2 import Tournament


@click.command()
@click.argument("subject", metavar="TOURNAMENT|CANDIDATE")
@click.option("--episodes", type=EPISODE_RANGE, help="Episodes to finish.  [default: as in the tournament]")
@click.option(
    "--option", "options", multiple=True, metavar="K=V", help="Change one of `evaluation.options`; repeatable."
)
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Seed of the environments.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the most likely one.")
@mesh_options
def evaluate(
    settings: Settings, subject: str, episodes: int | None, options: Sequence[str], seed: int, stochastic: bool
) -> int:
    """Evaluate a champion or another candidate.

    TOURNAMENT is an id, a prefix of one, or `latest`, and selects the champion. CANDIDATE is the id of a candidate or a
    prefix of one, or the id of an agent, which selects its candidate that ranks best on the board, or its last
    submission if none is there.
    """
    session.require_tournaments(settings)
    struct = parse_options(options)

    async def command(interrupts: Interrupts) -> int:
        async with session.open_client(settings, Use.EVALUATE, interrupts) as client:
            tournament, (checkpoint, *members) = await find_checkpoints(client, subject, where=settings.where)
            evaluation = await evaluated(
                client,
                tournament,
                checkpoint,
                members=members,
                episodes=episodes or tournament.spec.evaluation.episodes,
                options=evaluation_options(tournament, struct),
                seed=seed,
                stochastic=stochastic,
            )
            agents = [one.agent_id for one in [checkpoint, *members]]
            known = await read_hyperparameters(client, tournament, agents) if settings.as_json else {}
        _show(settings, tournament, [checkpoint, *members], evaluation, known)
        return 0

    return session.run(command)


def _show(
    settings: Settings,
    tournament: Tournament,
    checkpoints: Sequence[Checkpoint],
    evaluation: Evaluation,
    known: HyperparametersByAgent,
) -> None:
    first, *others = checkpoints
    if settings.as_json:
        named = {
            "tournament_id": tournament.tournament_id,
            **json_shapes.checkpoint(first, known),
            "members": json_shapes.members(others, known),
        }
        show_json(named | json_shapes.evaluation(evaluation))
        return
    who = " + ".join(f"{one.agent_id} ({one.manifest_digest[:12]})" for one in checkpoints)
    show(f"{who}: {headline(evaluation)}")
    if evaluation.metrics:
        show(metrics_table(evaluation.metrics, column="candidate"))
