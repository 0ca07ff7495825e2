"""Implements `podrace ensemble`: evaluates the best agents of a board together and alone, on the same episodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli import session
from podrace.cli.results.scoring import evaluated
from podrace.cli.session import find_tournament
from podrace.cli.terminal import formats
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import EPISODE_RANGE, SEED_RANGE, Settings, mesh_options, parse_options
from podrace.cli.terminal.output import show, show_json
from podrace.cli.views import json_shapes
from podrace.cli.views.tables import plain_table
from podrace.client.evaluating import evaluation_options
from podrace.client.hyperparameters import HyperparametersByAgent, read_hyperparameters
from podrace.client.scores import standard_error
from podrace.errors import NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.mesh.home_lock import Use
from podrace.tournament.v1.tournament_pb2 import Tournament

DEFAULT_TOP = 5
TOGETHER = "ensemble"


@dataclass(frozen=True)
class ScoreRow:
    """Evaluation of an agent or of the ensemble."""

    name: str
    algorithm: str
    evaluation: Evaluation


@click.command()
@click.argument("tournament")
@click.option("--top", type=click.IntRange(min=2), default=DEFAULT_TOP, show_default=True, help="Number of members.")
@click.option("--episodes", type=EPISODE_RANGE, help="Episodes to finish.  [default: as in the tournament]")
@click.option(
    "--option", "options", multiple=True, metavar="K=V", help="Change one of `evaluation.options`; repeatable."
)
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Seed of the environments.")
@mesh_options
def ensemble(
    settings: Settings, tournament: str, top: int, episodes: int | None, options: Sequence[str], seed: int
) -> int:
    """Evaluate the best agents as an ensemble, and each alone.

    An ensemble takes the mean of its members' continuous actions, or the discrete action that most members choose.
    TOURNAMENT is an id, a prefix of one, or `latest`. The members are the best candidates of different agents.
    """
    session.require_tournaments(settings)
    struct = parse_options(options)

    async def command(interrupts: Interrupts) -> int:
        async with session.open_client(settings, Use.EVALUATE, interrupts) as client:
            found = await find_tournament(client, tournament, settings)
            members = best_of_agents(await client.list_board(found), top)
            if not members:
                raise NotFound(f"tournament {found.tournament_id} has no candidate yet")

            async def scored(candidates: Sequence[Candidate]) -> Evaluation:
                first, *others = map(checkpoint_of, candidates)
                return await evaluated(
                    client,
                    found,
                    first,
                    members=others,
                    episodes=episodes or found.spec.evaluation.episodes,
                    options=evaluation_options(found, struct),
                    seed=seed,
                )

            lines = [ScoreRow(TOGETHER, "", await scored(members))]
            lines += [ScoreRow(member.agent_id, member.algorithm, await scored([member])) for member in members]
            agents = [member.agent_id for member in members]
            known = await read_hyperparameters(client, found, agents) if settings.as_json else {}
        _show(settings, found, members, lines, known)
        return 0

    return session.run(command)


def best_of_agents(board: Sequence[Candidate], top: int) -> list[Candidate]:
    """Returns the best candidate of each of the `top` best agents, best first; fewer if there are fewer agents.

    Args:
        board: Candidates by rank.
        top: Number of members.
    """
    best: dict[str, Candidate] = {}
    for candidate in board:
        best.setdefault(candidate.agent_id, candidate)
    return list(best.values())[:top]


def checkpoint_of(candidate: Candidate) -> Checkpoint:
    """Returns the checkpoint of a candidate."""
    return Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id)


def _show(
    settings: Settings,
    tournament: Tournament,
    members: Sequence[Candidate],
    lines: Sequence[ScoreRow],
    known: HyperparametersByAgent,
) -> None:
    if settings.as_json:
        together, *alone = lines
        show_json(
            {
                "tournament_id": tournament.tournament_id,
                "ensemble": json_shapes.evaluation(together.evaluation),
                "members": [
                    json_shapes.checkpoint(checkpoint_of(member), known)
                    | {"algorithm": line.algorithm}
                    | json_shapes.evaluation(line.evaluation)
                    for member, line in zip(members, alone, strict=True)
                ],
            }
        )
        return
    table = plain_table("agent", "algorithm", "score ± standard error", "episodes", right=("score ± standard error",))
    for line in lines:
        table.add_row(
            formats.short(line.name, tournament.tournament_id),
            line.algorithm,
            formats.score(line.evaluation.mean_return, standard_error(line.evaluation)),
            str(line.evaluation.episodes),
            style="bold" if line.name == TOGETHER else "",
        )
    show(table)
