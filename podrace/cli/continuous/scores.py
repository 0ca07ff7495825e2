"""Scores challenger and champion on the validation slice of a version, on the same fresh seeds."""

import hashlib

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.cli.continuous.decisions import ValidationScore
from podrace.cli.continuous.journal import EnsembleMember, ScoredAgent
from podrace.cli.results.scoring import evaluated
from podrace.client import Client
from podrace.client.champion import members_of_champion
from podrace.client.hyperparameters import read_of_champion
from podrace.client.scores import standard_error
from podrace.errors import FailedPrecondition
from podrace.tournament.v1.tournament_pb2 import Tournament

Scored = tuple[ValidationScore | None, str]
"""A score and an empty text, or None and the reason why there is no score."""


async def read_champion(client: Client, tournament: Tournament) -> ScoredAgent:
    """Returns the champion of an ended tournament that has one, with its hyperparameters as far as they are known."""
    first, *others = members_of_champion(tournament)
    known = await read_of_champion(client, tournament)
    return ScoredAgent(
        first.agent_id,
        tournament.tournament_id,
        first.manifest_digest,
        members=tuple(EnsembleMember(one.agent_id, one.manifest_digest, known.get(one.agent_id, {})) for one in others),
        hyperparameters=known.get(first.agent_id, {}),
    )


async def scores_of(
    client: Client, tournament: Tournament, challenger: ScoredAgent, incumbent: ScoredAgent | None
) -> tuple[Scored, Scored]:
    """Returns the scores of challenger and incumbent; without an incumbent the second is `(None, "")`.

    The evaluations have fixed request ids, so calling the function again within a day reuses them.

    Args:
        client: Client of the mesh.
        tournament: Tournament of the challenger. Its evaluation options name the validation slice.
        challenger: Champion of that tournament.
        incumbent: The current champion.

    Raises:
        PodraceError: The mesh does not answer. A failed evaluation is part of the result instead.
    """
    new = await _evaluation_of(client, tournament, challenger)
    old = await _evaluation_of(client, tournament, incumbent) if incumbent else ""
    faults = [one.evaluator_fault for one in (new, old) if isinstance(one, Evaluation)]
    if len(faults) == 2 and bool(faults[0]) != bool(faults[1]):
        # Scores of different evaluators cannot be compared.
        return _scored(new), (None, f"one of the two was scored by the built-in evaluator: {faults[0] or faults[1]}")
    return _scored(new), _scored(old)


async def _evaluation_of(client: Client, tournament: Tournament, one: ScoredAgent) -> Evaluation | str:
    """Returns the evaluation of an agent, or the reason why it failed."""
    named = hashlib.sha256(f"continuous {tournament.tournament_id}".encode()).digest()
    try:
        return await evaluated(
            client,
            tournament,
            Checkpoint(agent_id=one.agent_id, manifest_digest=one.manifest_digest),
            members=[
                Checkpoint(agent_id=member.agent_id, manifest_digest=member.manifest_digest) for member in one.members
            ],
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
    # The standard error of a single episode counts as 0, as on the board: the higher return is better.
    return ValidationScore(made.mean_return, standard_error(made) or 0.0, made.episodes), ""
