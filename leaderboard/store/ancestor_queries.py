"""Reads the agent of another tournament that a tournament starts from; leaderboard.evolution.ancestor decides.

Its candidate is chosen when the first agent of the tournament is generated: submissions that arrive later in the
ancestor's own tournament do not count. All agents of the tournament therefore start from the same candidate.
"""

from leaderboard.evolution.ancestor import Ancestor, best_of, refusal, seeded_numbers
from leaderboard.store import records
from podrace.checkpoint_store.store import Place
from podrace.database import Transaction
from podrace.specification import ancestor as ancestry
from podrace.specification.ancestor import KEY
from podrace.specification.messages import bad_spec
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def check(transaction: Transaction, tournament_id: str, spec: TournamentSpec) -> None:
    """Checks, before the first agent is generated, that the tournament can start from its ancestor.

    Raises:
        InvalidArgument: There is no such agent, it was never scored, or its files do not fit (BAD_SPEC).
    """
    agent_id = spec.evolution.ancestor_agent_id
    if not agent_id:
        return
    found = records.find_generation(transaction, agent_id)
    if found is None or found.agent.tournament_id == tournament_id:
        raise bad_spec(f"{KEY} = {agent_id!r}: no other tournament of this leaderboard has such an agent")
    if problem := refusal(spec, found.agent, records.get_spec(transaction, found.agent.tournament_id)):
        raise bad_spec(problem)
    if _read(transaction, agent_id, records.last_sequence(transaction)) is None:
        raise bad_spec(f"{KEY} = {agent_id!r}: was never scored, so it has no checkpoint to start from")


def find(
    transaction: Transaction, tournament_id: str, spec: TournamentSpec, number: int | None = None
) -> Ancestor | None:
    """Returns the ancestor of a tournament; None if it has none, or if the agent of this number does not start from it.

    Without a number, the ancestor is returned for any agent.
    """
    agent_id = spec.evolution.ancestor_agent_id
    if not agent_id or (number is not None and not _may_start(transaction, spec, number)):
        return None
    first = records.first_generation(transaction, tournament_id)
    return _read(transaction, agent_id, first.after_sequence if first else records.last_sequence(transaction))


def needed(transaction: Transaction) -> set[Place]:
    """Returns the manifests that agents not generated yet will start from."""
    found = set[Place]()
    for last in records.last_generations(transaction):
        tournament_id = last.agent.tournament_id
        spec = records.get_spec(transaction, tournament_id)
        if spec.evolution.ancestor_agent_id and _may_start(transaction, spec, last.agent.number + 1, or_later=True):
            ancestor = find(transaction, tournament_id, spec)
            if ancestor:
                found.add(Place(ancestor.candidate.tournament_id, ancestor.candidate.candidate_id))
    return found


def _may_start(transaction: Transaction, spec: TournamentSpec, number: int, *, or_later: bool = False) -> bool:
    generation = records.find_generation(transaction, spec.evolution.ancestor_agent_id)
    numbers = seeded_numbers(spec, generation.agent.algorithm) if generation else []
    return number in numbers or (or_later and any(later > number for later in numbers))


def _read(transaction: Transaction, agent_id: str, last_sequence: int) -> Ancestor | None:
    generation = records.find_generation(transaction, agent_id)
    tournament_id = ancestry.tournament_of(agent_id)
    if generation is None:
        return None
    submissions = records.list_candidates(transaction, tournament_id)
    known = [one for one in submissions if one.sequence <= last_sequence]
    candidate = best_of(agent_id, records.get_spec(transaction, tournament_id), known)
    return Ancestor(generation.agent, candidate) if candidate else None
