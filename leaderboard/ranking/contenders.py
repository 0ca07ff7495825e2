"""Decides which candidates may become the champion. Pure.

These are the first candidates of the board and the newest submission of each of their lineages, which was trained
longest and was not selected by its score.
"""

from collections.abc import Mapping, Sequence

from leaderboard.ranking.board import Board
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_REFUSE, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

Newest = Mapping[str, Candidate]
"""The newest submission of each lineage, by the name of the lineage."""


def lineage_of(candidate: Candidate) -> str:
    """Returns the name of the lineage of a candidate: its agent."""
    return candidate.agent_id


def newest_of_lineages(submissions: Sequence[Candidate]) -> dict[str, Candidate]:
    """Returns the newest submission of each lineage, of submissions by arrival."""
    return {lineage_of(candidate): candidate for candidate in submissions}


def contenders_of(spec: TournamentSpec, board: Board, newest: Newest) -> list[Candidate]:
    """Returns the candidates that may become the champion, without duplicates.

    These are the first of the board by rank, then the newest submission of each of their lineages. A candidate that an
    updater plugin refused is none. If the updater plugin ranks the board by numbers of its own, mean returns must not
    overrule it, so the first of the board is the only contender.
    """
    top = board[: spec.champion.reevaluate_top]
    if top[0].HasField("rank_score"):
        return [top[0]]
    latest = (newest.get(lineage) for lineage in dict.fromkeys(map(lineage_of, top)))
    known = {candidate.candidate_id for candidate in top}
    return [
        *top,
        *(one for one in latest if one and one.candidate_id not in known and one.opinion != OPINION_REFUSE),
    ]
