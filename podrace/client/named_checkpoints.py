"""Finds the checkpoints that a user names: those of a champion, of an agent, or of a candidate."""

from collections.abc import Sequence

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.client import resolve
from podrace.client.client import Client
from podrace.errors import NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import Tournament


async def find_checkpoints(client: Client, subject: str, *, where: str) -> tuple[Tournament, list[Checkpoint]]:
    """Finds the checkpoint that the user named: that of a champion, of an agent's best candidate, or of a candidate.

    There are several only for a champion that is an ensemble; the best comes first.

    Raises:
        NotFound: There is no such tournament, agent or candidate, or no candidate yet.
        InvalidArgument: The prefix is ambiguous.
    """
    tournaments = {tournament.tournament_id: tournament for tournament in await client.list_tournaments()}
    ids = list(tournaments)
    agent = resolve.resolve_agent(subject, ids)
    if agent:
        tournament_id, agent_id = agent
        candidates = await client.list_submissions(tournaments[tournament_id])
        return tournaments[tournament_id], [_best_of(agent_id, candidates)]
    named = any(tournament_id.startswith(subject) for tournament_id in ids)
    if not named and resolve.looks_like_candidate(subject):
        return await _find_candidate(client, subject, list(tournaments.values()), where)
    tournament = tournaments[resolve.resolve_tournament(subject, ids, where=where)]
    return tournament, await client.get_champion_members(tournament)


def names_tournament(subject: str, tournament: Tournament) -> bool:
    """Returns whether the user named the tournament itself. Otherwise it was an agent or a candidate of it."""
    return subject == resolve.LATEST or tournament.tournament_id.startswith(subject)


def _best_of(agent_id: str, candidates: Sequence[Candidate]) -> Checkpoint:
    """Returns the agent's candidate that ranks best on the board, or its last submission if none is there."""
    own = [candidate for candidate in candidates if candidate.agent_id == agent_id]
    if not own:
        raise NotFound(f"agent {agent_id} has no candidate")
    ranked = [candidate for candidate in own if candidate.rank]
    if ranked:
        best = min(ranked, key=lambda candidate: candidate.rank)
    else:
        # Only the files of an agent's last submission are kept off the board.
        best = max(own, key=lambda candidate: candidate.sequence)
    return Checkpoint(agent_id=agent_id, manifest_digest=best.candidate_id)


async def _find_candidate(
    client: Client, subject: str, tournaments: Sequence[Tournament], where: str
) -> tuple[Tournament, list[Checkpoint]]:
    found: dict[str, tuple[Tournament, list[Checkpoint]]] = {}
    for tournament in tournaments:
        for candidate in await client.list_submissions(tournament):
            checkpoint = Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id)
            found[candidate.candidate_id] = tournament, [checkpoint]
    return found[resolve.resolve_candidate(subject, list(found), where=where)]
