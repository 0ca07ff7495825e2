"""Holds candidates that would lead until another pod has verified them; leaderboard.ranking.verification decides.

A held candidate is not part of the log of submissions: once it is verified it arrives like a new one, with the sequence
number of that moment. A replay, the board and the strategies therefore never see a score that was not verified.
"""

from leaderboard.ranking.verification import MOST_REJECTIONS, Finding, compare, next_of
from leaderboard.store import records
from leaderboard.store.held_records import Held, add_held, find_held, list_held, remove_held
from leaderboard.store.refusal_records import add_refusal, count_refusals, find_refusal
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.database import Transaction
from podrace.errors import NOT_VERIFIED, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import (
    VERDICT_HELD,
    Candidate,
    Refusal,
    SubmitCandidateRequest,
    SubmitCandidateResponse,
    Verification,
)
from podrace.specification.evaluation_episodes import evaluation_lanes, evaluation_seed
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def hold(
    transaction: Transaction, candidate: Candidate, request: SubmitCandidateRequest, spec: TournamentSpec
) -> SubmitCandidateResponse:
    """Holds a candidate that would lead.

    Raises:
        InvalidArgument: Too many candidates of its agent failed a verification (NOT_VERIFIED).
    """
    refused = count_refusals(transaction, candidate.tournament_id, candidate.agent_id, NOT_VERIFIED)
    if refused >= MOST_REJECTIONS:
        raise InvalidArgument(
            f"candidate {candidate.candidate_id[:12]} would lead, and {refused} candidates of {candidate.agent_id} were"
            " refused because other pods measured lower scores; it is not verified",
            reason=NOT_VERIFIED,
        )
    held = Candidate()
    held.CopyFrom(candidate)
    held.verdict = VERDICT_HELD
    held.reason = (
        f"it would lead, and waits until another pod has played {spec.evaluation.verify} of its episodes"
        " (evaluation.verify)"
    )
    add_held(transaction, held, request)
    return _answer(transaction, held)


def answer_to_held(transaction: Transaction, tournament_id: str, candidate_id: str) -> SubmitCandidateResponse | None:
    """Returns the answer to a candidate that is held; None if it is not known.

    Raises:
        InvalidArgument: Another pod measured a lower score (NOT_VERIFIED).
    """
    found = find_held(transaction, candidate_id)
    if found:
        return _answer(transaction, found[0])
    refusal = find_refusal(transaction, tournament_id, candidate_id)
    if refusal and refusal.error_reason == NOT_VERIFIED:
        raise InvalidArgument(refusal.message, reason=NOT_VERIFIED)
    return None


def _answer(transaction: Transaction, held: Candidate) -> SubmitCandidateResponse:
    board = records.read_board(transaction, held.tournament_id)
    best = max((candidate.score for candidate in board), default=0.0)
    answer = SubmitCandidateResponse(candidate=held, best_score=best)
    answer.candidate.ClearField("sequence")
    return answer


def as_submitted(held: Candidate) -> Candidate:
    """Returns a held candidate as it was before it was held."""
    draft = Candidate()
    draft.CopyFrom(held)
    # It gets these when it arrives at the board.
    draft.ClearField("sequence")
    draft.ClearField("submit_time")
    draft.ClearField("estimate")
    draft.ClearField("estimate_error")
    draft.ClearField("episode_correlation")
    draft.ClearField("verdict")
    draft.ClearField("reason")
    return draft


def decide(candidate: Candidate, evaluation: Evaluation | None, error: str, spec: TournamentSpec) -> Finding:
    """Decides about a candidate from the evaluation of another pod; None: there is none, because of `error`."""
    if evaluation is None:
        return Finding(False, f"it could not be verified: {error or 'the evaluation has no result'}")
    if evaluation.episodes < spec.evaluation.verify:
        return Finding(
            False, f"it could not be verified: {evaluation.episodes} of {spec.evaluation.verify} episodes were played"
        )
    return compare(candidate, evaluation)


def refuse(transaction: Transaction, held: Held, finding: Finding) -> None:
    """Refuses a held candidate; it stays refused."""
    candidate, request = held
    remove_held(transaction, candidate.candidate_id)
    refusal = Refusal(
        agent_id=candidate.agent_id,
        manifest_digest=candidate.candidate_id,
        lease_epoch=request.lease_epoch,
        error_reason=NOT_VERIFIED,
        message=f"candidate {candidate.candidate_id[:12]} may not lead: {finding.reason}",
    )
    add_refusal(transaction, candidate.tournament_id, refusal)


def wanted_verification(transaction: Transaction, tournament_id: str) -> tuple[Verification | None, int]:
    """Returns the verification that is wanted next, and how many candidates wait behind it."""
    held = [candidate for candidate, _ in list_held(transaction, tournament_id)]
    first = next_of(held)
    if first is None:
        return None, 0
    spec = records.get_spec(transaction, tournament_id)
    return Verification(
        candidate=first,
        episodes=spec.evaluation.verify,
        seed=evaluation_seed(spec, first.evaluation_epoch),
        lanes=evaluation_lanes(spec),
    ), len(held) - 1
