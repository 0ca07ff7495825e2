"""Owns who stands on a board, and in which order. Pure: no clock, no store, no database.

The order. A board ranks by mean return; ties go to the lower standard error, then to fewer environment steps, then to
the lower agent number, then to the earlier arrival. This is a total order, so that a board is the same however it was
come by. "Within the error" is no order at all (a may be indistinguishable from b and b from c, while a is better than
c): noise therefore decides one thing only, namely who comes through the door of a full board.

The rules, for a board of some capacity:

1.  An agent has one place. Its better-ranked candidate takes the place of its earlier one, whatever the errors: it is
    the one that was trained longer, and to refuse it would throw that training away.
2.  While there is room, everybody else enters.
3.  Into a full board, a candidate enters in the place of the last if it ranks before it. The last stays, though, if
    it needed no more environment steps and the difference of the two scores is at most one standard error of that
    difference, sqrt(a^2 + b^2): the simplest among what cannot be told apart (the one-standard-error rule, Breiman,
    Friedman, Olshen and Stone, "Classification and Regression Trees", 1984, section 3.4.3).
4.  A candidate that ranks before everybody enters: the highest mean ever submitted always stands on the board.

Before all that, who was scored as the tournament wants it ranks before who was not: where a custom evaluator failed and
the pod's own stood in, the score is a number of another kind.

A custom updater overrules: its opinion of a candidate (accept, refuse) comes before the rules, and a score it gives for
the rank comes before the mean and leaves rule 3 without its exception. Who has such a score ranks before who has none,
or a step in which the updater fails could crown a candidate by a number of another kind.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from podrace.leaderboard.v1.leaderboard_pb2 import (
    OPINION_ACCEPT,
    OPINION_REFUSE,
    OPINION_UNSPECIFIED,
    VERDICT_ACCEPTED,
    VERDICT_EVICTED,
    VERDICT_REFUSED,
    Candidate,
    SubmitCandidateResponse,
    Verdict,
)

Board = tuple[Candidate, ...]
"""Candidates by rank, the best first; nobody changes them."""


@dataclass(frozen=True)
class Standing:
    """Where a candidate stands."""

    verdict: Verdict.ValueType
    """On the board, never on it, or no longer on it."""
    reason: str
    """Why, in a line for a person."""


@dataclass(frozen=True)
class Judgement:
    """What one or several submissions made of a board."""

    board: Board
    """The board after them."""
    standings: Mapping[str, Standing]
    """By candidate id: of those that were judged, and of those that they evicted."""


def rank_key(candidate: Candidate) -> tuple[bool, bool, float, float, int, int, int]:
    """The order of a board: the smaller key ranks first."""
    keyed = candidate.HasField("rank_score")
    return (
        bool(candidate.evaluator_fault),
        not keyed,
        -(candidate.rank_score if keyed else candidate.score),
        candidate.standard_error,
        candidate.environment_steps,
        candidate.agent_number,
        candidate.sequence,
    )


def judge(board: Board, candidate: Candidate, capacity: int) -> Judgement:
    """Judges one candidate by the rules above.

    Args:
        board: The board it comes to.
        candidate: With score, standard error, steps, agent number and sequence; the score is finite. With what came of
            it, if a custom updater was asked.
        capacity: Places on the board, at least 1.
    """
    own = next((other for other in board if other.agent_id == candidate.agent_id), None)
    if candidate.opinion == OPINION_REFUSE:
        return _refused(board, candidate, "refused")
    if candidate.opinion == OPINION_ACCEPT:
        evicted = own or (board[-1] if len(board) >= capacity else None)
        return _accepted(
            board,
            candidate,
            f"took the place of {named(evicted)}" if evicted else "the board has room",
            evicted=evicted,
        )
    if own is not None:
        if rank_key(own) < rank_key(candidate):
            return _refused(board, candidate, f"no better than its own earlier {shown(own)}")
        return _accepted(board, candidate, f"better than its own earlier {shown(own)}", evicted=own)
    if len(board) < capacity:
        return _accepted(board, candidate, "the board has room")
    last = board[-1]
    if why_last_stays := _why_last_stays(board, candidate):
        return _refused(board, candidate, why_last_stays)
    return _accepted(board, candidate, f"took the place of {named(last)}", evicted=last)


def fold(candidates: Iterable[Candidate], capacity: int) -> Judgement:
    """Judges candidates one after the other, beginning with an empty board; the standings are those at the end."""
    board: Board = ()
    standings: dict[str, Standing] = {}
    for candidate in candidates:
        judgement = judge(board, candidate, capacity)
        board = judgement.board
        standings |= judgement.standings
    return Judgement(board, standings)


def canonical(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The order in which a synchronous tournament judges: agent by agent, each one's submissions as they came.

    It does not depend on which pod was faster, and so the board and the population do not.
    """
    return sorted(candidates, key=lambda candidate: (candidate.agent_number, candidate.sequence))


def judge_arrival(seen: Iterable[Candidate], candidate: Candidate, capacity: int, *, synchronous: bool) -> Judgement:
    """Judges a candidate when it arrives.

    Args:
        seen: The board; in a synchronous tournament every earlier submission, because all are judged again.
        candidate: The new one.
        capacity: Places on the board.
        synchronous: Whether the order of judging is the canonical one instead of that of arrival.
    """
    if synchronous:
        return fold(canonical([*seen, candidate]), capacity)
    return judge(tuple(seen), candidate, capacity)


def rank_of(board: Board, candidate_id: str) -> int:
    """The candidate's rank, from 1; 0 when it is not on the board."""
    return next((rank for rank, other in enumerate(board, start=1) if other.candidate_id == candidate_id), 0)


def answer_of(judgement: Judgement, candidate: Candidate) -> SubmitCandidateResponse:
    """What is answered to the submission of a candidate that was judged last."""
    standing = judgement.standings[candidate.candidate_id]
    best = max((other.score for other in judgement.board), default=0.0)
    answer = SubmitCandidateResponse(candidate=candidate, best_score=best)
    answer.candidate.rank = rank_of(judgement.board, candidate.candidate_id)
    answer.candidate.verdict = standing.verdict
    answer.candidate.reason = standing.reason
    return answer


def shown(candidate: Candidate) -> str:
    """A score for a person."""
    return f"{candidate.score:.4g} ± {candidate.standard_error:.2g}"


def named(candidate: Candidate) -> str:
    """An agent and its score for a person."""
    return f"a{candidate.agent_number} ({shown(candidate)})"


def _why_last_stays(board: Board, candidate: Candidate) -> str:
    """Why a full board has no place for a candidate; empty if it has."""
    last = board[-1]
    if rank_key(last) < rank_key(candidate):
        return f"the board is full and its last, {named(last)}, is no worse"
    if rank_key(candidate) < rank_key(board[0]):
        return ""
    if candidate.HasField("rank_score") or last.HasField("rank_score") or last.evaluator_fault:
        return ""
    error = math.hypot(candidate.standard_error, last.standard_error)
    if candidate.score - last.score <= error and last.environment_steps <= candidate.environment_steps:
        return (
            f"the board is full and its last, {named(last)}, is within one standard error of the difference"
            f" ({error:.2g}) with no more steps"
        )
    return ""


def _accepted(board: Board, candidate: Candidate, reason: str, *, evicted: Candidate | None = None) -> Judgement:
    standings = {candidate.candidate_id: Standing(VERDICT_ACCEPTED, _with_opinion(candidate, reason))}
    if evicted is not None:
        standings[evicted.candidate_id] = Standing(VERDICT_EVICTED, f"{named(candidate)} took its place")
    staying = (other for other in board if other is not evicted)
    return Judgement(tuple(sorted((*staying, candidate), key=rank_key)), standings)


def _refused(board: Board, candidate: Candidate, reason: str) -> Judgement:
    return Judgement(board, {candidate.candidate_id: Standing(VERDICT_REFUSED, _with_opinion(candidate, reason))})


def _with_opinion(candidate: Candidate, reason: str) -> str:
    """Puts a reason after the opinion of an updater plugin and before the failure of an evaluator plugin."""
    if candidate.evaluator_fault:
        reason += f"; ranks after all candidates that the tournament's evaluator scored: {candidate.evaluator_fault}"
    if not candidate.opinion_reason:
        return reason
    decided = "built-in rules instead: " * (candidate.opinion == OPINION_UNSPECIFIED)
    return f"{candidate.opinion_reason}; {decided}{reason}"
