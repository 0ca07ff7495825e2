"""Decides which candidates may become the champion. Pure.

These are the first candidates of the board, the newest submission of each of their trials, and the newest of the trial
with the most training behind it. The newest ones were not selected by their scores.
"""

from collections.abc import Iterable, Mapping

from leaderboard.ranking.board import Board, trial_key
from podrace.leaderboard.v1.leaderboard_pb2 import OPINION_REFUSE, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def newest_by_trial(submissions: Iterable[Candidate]) -> dict[int, Candidate]:
    """Returns the newest submission of each trial, by its key; submissions are given by arrival."""
    return {trial_key(candidate): candidate for candidate in submissions}


def contenders_of(spec: TournamentSpec, board: Board, newest: Mapping[int, Candidate]) -> list[Candidate]:
    """Returns the candidates that may become the champion, without duplicates.

    These are the first of the board by rank, then the newest submission of each of their trials, then that of the trial
    with the most environment steps behind it: lucky scores of many others may have pushed it down the board. Those that
    an updater plugin refused are left out. If the updater plugin ranks the board by its own numbers, mean returns must
    not overrule it, so the first of the board is the only contender.

    Args:
        spec: Resolved specification.
        board: Candidates by rank, at least one.
        newest: The newest submission of each trial, see `newest_by_trial`.
    """
    top = board[: spec.champion.reevaluate_top]
    if top[0].HasField("rank_score"):
        return [top[0]]
    longest = max(newest.values(), key=lambda one: (one.environment_steps, -one.sequence), default=None)
    latest = {trial_key(one): newest.get(trial_key(one)) for one in [*top, *([longest] if longest else [])]}.values()
    known = {candidate.candidate_id for candidate in top}
    return [
        *top,
        *(one for one in latest if one and one.candidate_id not in known and one.opinion != OPINION_REFUSE),
    ]
