"""Decides which candidates are on a board, and in which order. Pure: no clock, no store, no database.

Order. A board ranks by the estimates of its candidates (leaderboard.ranking.score_history), and candidates without an
estimate, which are those of earlier versions, by their score. Ties are broken by the lower standard error, then by
fewer environment steps, then by the lower agent number, then by the earlier arrival. This is a total order. An estimate
is fixed when its candidate arrives, so the order of two candidates never changes. "Within the error" is not an order (a
may be indistinguishable from b and b from c, while a is better than c). The errors therefore decide only whether a
candidate enters a full board.

Rules, for a board with a given capacity:

1.  A trial has one place: an agent and those that continue it unchanged. A candidate that ranks before the trial's
    earlier one replaces it, whatever the errors: it was trained longer, and refusing it would discard that training.
2.  While there is room, every other candidate enters.
3.  On a full board, a candidate that ranks before the last one replaces it. There is one exception: the last one stays
    if it needed no more environment steps and the difference of the two is at most one standard error of that
    difference, episode by episode where their episodes are common (leaderboard.ranking.paired). This is the
    one-standard-error rule: the simplest of indistinguishable models (Breiman, Friedman, Olshen and Stone,
    "Classification and Regression Trees", 1984, section 3.4.3).
4.  A candidate that ranks before all others always enters, so the highest estimate ever submitted is on the board.

If the tournament has an evaluator plugin, candidates that it scored rank before candidates that the built-in evaluator
scored, because the two numbers are not comparable.

An updater plugin overrules these rules. Its opinion of a candidate (accept, refuse) is applied first. A score that it
gives for the rank replaces the estimate, and the exception of rule 3 does not apply. Candidates with such a score rank
before those without, so that a step in which the plugin fails cannot put another kind of number first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leaderboard.ranking.paired import difference, ranked_error, ranked_score
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
"""Candidates by rank, the best first. They are never modified."""


@dataclass(frozen=True)
class Standing:
    """The current state of a candidate."""

    verdict: Verdict.ValueType
    """Accepted (on the board), refused (never on it), or evicted (no longer on it)."""
    reason: str
    """Why, in one line."""


@dataclass(frozen=True)
class Judgement:
    """The result of one or several submissions."""

    board: Board
    """The board after them."""
    standings: Mapping[str, Standing]
    """Standings of the judged candidates and of those that they evicted, by candidate id."""


def rank_key(candidate: Candidate) -> tuple[bool, bool, float, float, int, int, int]:
    """Returns the key of the order of a board: the smaller key ranks first."""
    keyed = candidate.HasField("rank_score")
    return (
        bool(candidate.evaluator_fault),
        not keyed,
        -(candidate.rank_score if keyed else ranked_score(candidate)),
        ranked_error(candidate),
        candidate.environment_steps,
        candidate.agent_number,
        candidate.sequence,
    )


def trial_key(candidate: Candidate) -> int:
    """Returns what names the trial of a candidate: agents that continue each other unchanged."""
    return candidate.trial if candidate.HasField("trial") else candidate.agent_number


def judge(board: Board, candidate: Candidate, capacity: int) -> Judgement:
    """Judges one candidate by the rules above.

    Args:
        board: The board before.
        candidate: With a finite score, standard error, steps, agent number and sequence; with the opinion of an updater
            plugin, or the reason why there is none, if the tournament has one.
        capacity: Places on the board, at least 1.
    """
    own = next((other for other in board if trial_key(other) == trial_key(candidate)), None)
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
    """Judges candidates one after another, beginning with an empty board; the standings are the final ones."""
    board: Board = ()
    standings: dict[str, Standing] = {}
    for candidate in candidates:
        judgement = judge(board, candidate, capacity)
        board = judgement.board
        standings |= judgement.standings
    return Judgement(board, standings)


def canonical(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns the order in which a synchronous tournament judges: by agent, and by arrival for each agent.

    It does not depend on which pod was faster, so neither do the board and the population.
    """
    return sorted(candidates, key=lambda candidate: (candidate.agent_number, candidate.sequence))


def judge_arrival(seen: Iterable[Candidate], candidate: Candidate, capacity: int, *, synchronous: bool) -> Judgement:
    """Judges a candidate when it arrives.

    Args:
        seen: The board; in a synchronous tournament every earlier submission, because all are judged again.
        candidate: The new one.
        capacity: Places on the board.
        synchronous: Whether candidates are judged in canonical order instead of the order of arrival.
    """
    if synchronous:
        return fold(canonical([*seen, candidate]), capacity)
    return judge(tuple(seen), candidate, capacity)


def rank_of(board: Board, candidate_id: str) -> int:
    """Returns the rank of a candidate, from 1; 0 if it is not on the board."""
    return next((rank for rank, other in enumerate(board, start=1) if other.candidate_id == candidate_id), 0)


def answer_of(judgement: Judgement, candidate: Candidate) -> SubmitCandidateResponse:
    """Makes the answer to the submission that was judged last."""
    standing = judgement.standings[candidate.candidate_id]
    best = max((other.score for other in judgement.board), default=0.0)
    answer = SubmitCandidateResponse(candidate=candidate, best_score=best)
    answer.candidate.rank = rank_of(judgement.board, candidate.candidate_id)
    answer.candidate.verdict = standing.verdict
    answer.candidate.reason = standing.reason
    return answer


def shown(candidate: Candidate) -> str:
    """Formats the number that a candidate ranks by, with its standard error."""
    return f"{ranked_score(candidate):.4g} ± {ranked_error(candidate):.2g}"


def named(candidate: Candidate) -> str:
    """Formats the number of an agent with its score."""
    return f"a{candidate.agent_number} ({shown(candidate)})"


def _why_last_stays(board: Board, candidate: Candidate) -> str:
    """Returns why a full board does not take a candidate; empty if it does."""
    last = board[-1]
    if rank_key(last) < rank_key(candidate):
        return f"the board is full and its last, {named(last)}, is no worse"
    if rank_key(candidate) < rank_key(board[0]):
        return ""
    if candidate.HasField("rank_score") or last.HasField("rank_score") or last.evaluator_fault:
        return ""
    lead = difference(candidate, last)
    if lead.value <= lead.error and last.environment_steps <= candidate.environment_steps:
        return (
            f"the board is full and its last, {named(last)}, is within one standard error of the difference"
            f" ({lead.error:.2g}) with no more steps"
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
    """Puts a reason after the opinion of an updater plugin and before what is special about the score."""
    if candidate.HasField("evaluation_epoch") and not candidate.episode_returns:
        reason += "; its episodes cannot be compared one by one with those of other agents"
    if candidate.evaluator_fault:
        reason += f"; ranks after all candidates that the tournament's evaluator scored: {candidate.evaluator_fault}"
    if not candidate.opinion_reason:
        return reason
    decided = "built-in rules instead: " * (candidate.opinion == OPINION_UNSPECIFIED)
    return f"{candidate.opinion_reason}; {decided}{reason}"
