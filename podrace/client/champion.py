"""Reads which checkpoints are the champion of a tournament. Pure."""

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.tournament.v1.tournament_pb2 import Tournament


def members_of_champion(tournament: Tournament) -> list[Checkpoint]:
    """Returns the checkpoints that act together as champion: one, or the members of an ensemble, the best first.

    The list is empty as long as the tournament has no candidate.
    """
    if not tournament.champion_manifest_digest:
        return []
    first = Checkpoint(agent_id=tournament.best_agent_id, manifest_digest=tournament.champion_manifest_digest)
    return [first, *tournament.champion_selection.members]
