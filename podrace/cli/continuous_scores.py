"""Scores challenger and champion on the validation slice of a version, on the same seeds, used for nothing before."""

import hashlib

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.cli.clients import Clients
from podrace.cli.continuous_decisions import Score
from podrace.cli.continuous_state import Contestant
from podrace.cli.scoring import evaluated, standard_error
from podrace.errors import FailedPrecondition
from podrace.tournament.v1.tournament_pb2 import Tournament

Scored = tuple[Score | None, str]
"""A score, or None and why there is none."""


async def scores_of(
    clients: Clients, tournament: Tournament, challenger: Contestant, incumbent: Contestant | None
) -> tuple[Scored, Scored]:
    """The scores of both; without an incumbent the second is empty.

    Asked for again within a day, the same evaluations are waited for, and not made once more.

    Args:
        clients: Of the mesh.
        tournament: Of the challenger: its evaluation's options say what is validated on.
        challenger: Its best.
        incumbent: The champion so far.

    Raises:
        PodraceError: The mesh does not answer; an evaluation that fails is in the answer instead.
    """
    new = await _scored(clients, tournament, challenger)
    return new, await _scored(clients, tournament, incumbent) if incumbent else (None, "")


async def _scored(clients: Clients, tournament: Tournament, one: Contestant) -> Scored:
    named = hashlib.sha256(f"continuous {tournament.tournament_id}".encode()).digest()
    try:
        evaluation = await evaluated(
            clients,
            tournament,
            Checkpoint(agent_id=one.agent_id, manifest_digest=one.manifest_digest),
            episodes=tournament.spec.champion.reevaluate_episodes or tournament.spec.evaluation.episodes,
            options=tournament.spec.evaluation.options,
            seed=int.from_bytes(named[:7], "big"),
            stochastic=not tournament.spec.evaluation.greedy,
            request_id=f"{tournament.tournament_id}-continuous-{one.agent_id}",
        )
    except FailedPrecondition as error:
        return None, error.message
    return Score(evaluation.mean_return, standard_error(evaluation), evaluation.episodes), ""
