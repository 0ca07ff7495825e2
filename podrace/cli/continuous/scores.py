"""Scores challenger and champion on the validation slice of a version, on the same seeds, used for nothing before."""

import hashlib

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli.continuous.decisions import Score
from podrace.cli.continuous.state import Contestant
from podrace.cli.results.scoring import evaluated
from podrace.client import Client
from podrace.client.scores import standard_error
from podrace.errors import FailedPrecondition
from podrace.tournament.v1.tournament_pb2 import Tournament

Scored = tuple[Score | None, str]
"""A score, or None and why there is none."""


async def scores_of(
    client: Client, tournament: Tournament, challenger: Contestant, incumbent: Contestant | None
) -> tuple[Scored, Scored]:
    """The scores of both; without an incumbent the second is empty.

    Asked for again within a day, the same evaluations are waited for, and not made once more.

    Args:
        client: Of the mesh.
        tournament: Of the challenger: its evaluation's options say what is validated on.
        challenger: Its best.
        incumbent: The champion so far.

    Raises:
        PodraceError: The mesh does not answer; an evaluation that fails is in the answer instead.
    """
    new = await _evaluation_of(client, tournament, challenger)
    old = await _evaluation_of(client, tournament, incumbent) if incumbent else ""
    faults = [one.evaluator_fault for one in (new, old) if isinstance(one, Evaluation)]
    if len(faults) == 2 and bool(faults[0]) != bool(faults[1]):
        # Numbers of two kinds: neither is known to be the better policy.
        return _scored(new), (None, f"one of the two was scored by its pod's own evaluator: {faults[0] or faults[1]}")
    return _scored(new), _scored(old)


async def _evaluation_of(client: Client, tournament: Tournament, one: Contestant) -> Evaluation | str:
    """The evaluation of one of them, or why there is none."""
    named = hashlib.sha256(f"continuous {tournament.tournament_id}".encode()).digest()
    try:
        return await evaluated(
            client,
            tournament,
            Checkpoint(agent_id=one.agent_id, manifest_digest=one.manifest_digest),
            episodes=tournament.spec.champion.reevaluate_episodes or tournament.spec.evaluation.episodes,
            options=tournament.spec.evaluation.options,
            seed=int.from_bytes(named[:7], "big"),
            stochastic=not tournament.spec.evaluation.greedy,
            request_id=f"{tournament.tournament_id}-continuous-{one.agent_id}",
        )
    except FailedPrecondition as error:
        return error.message


def _scored(made: Evaluation | str) -> Scored:
    if isinstance(made, str):
        return None, made
    # Of a single episode it is 0, as on the board: the higher return is the better one.
    return Score(made.mean_return, standard_error(made) or 0.0, made.episodes), ""
