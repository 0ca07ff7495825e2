"""Decides which candidates may become the champion. Pure.

These are the first candidates of the board and the newest submission of each of their lineages, which was trained
longest and was not selected by its score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_REFUSE, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class Lineages:
    """Which agents belong together, because each continues the one before unchanged."""

    newest: Mapping[str, Candidate]
    """The newest submission of each lineage, by its name."""
    names: Mapping[str, str]
    """Name of the lineage of an agent, by the id of the agent; an agent that is missing is a lineage by itself."""

    @classmethod
    def of(cls, submissions: Sequence[Candidate], names: Mapping[str, str]) -> "Lineages":
        """Returns the lineages of a tournament.

        Args:
            submissions: Its submissions by arrival.
            names: See above.
        """
        newest = {names.get(candidate.agent_id, candidate.agent_id): candidate for candidate in submissions}
        return cls(newest, names)

    def name_of(self, candidate: Candidate) -> str:
        """Returns the name of the lineage of a candidate."""
        return self.names.get(candidate.agent_id, candidate.agent_id)


def contenders_of(spec: TournamentSpec, board: Board, lineages: Lineages) -> list[Candidate]:
    """Returns the candidates that may become the champion, without duplicates.

    These are the first of the board by rank, then the newest submission of each of their lineages. A candidate that an
    updater plugin refused is none. If the updater plugin ranks the board by numbers of its own, mean returns must not
    overrule it, so the first of the board is the only contender.
    """
    top = board[: spec.champion.reevaluate_top]
    if top[0].HasField("rank_score"):
        return [top[0]]
    latest = (lineages.newest.get(name) for name in dict.fromkeys(map(lineages.name_of, top)))
    known = {candidate.candidate_id for candidate in top}
    return [
        *top,
        *(one for one in latest if one and one.candidate_id not in known and one.opinion != OPINION_REFUSE),
    ]
