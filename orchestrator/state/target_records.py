"""Reads the checks of the target return, which are stored as evaluations; the rules are in `decisions.target`.

A check is an evaluation whose request id marks it, so the database is the only record of it.
"""

import math
from collections.abc import Sequence

from orchestrator.decisions.target import CheckState, TargetCheck, describe
from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import EvaluationRecord, WorkPhase

WITHDRAWN = "withdrawn, because the tournament no longer needs it"
"""Error of a check whose tournament has ended."""


def request_id_of(tournament_id: str, number: int) -> str:
    """Returns the request id of a check."""
    return f"{tournament_id}-target-{number}"


def is_target_check(evaluation: EvaluationRecord) -> bool:
    """Whether an evaluation is a check of the target return."""
    return evaluation.request.request_id.startswith(f"{evaluation.tournament_id}-target-")


def evaluation_ids_of_checks(transaction: Transaction, tournament_id: str) -> list[str]:
    """Returns the evaluations that are checks of a tournament, by number."""
    found = records.select(transaction, EvaluationRecord, "tournament_id = ? ORDER BY number", tournament_id)
    return [one.evaluation_id for one in found if is_target_check(one)]


def read_checks(transaction: Transaction, evaluation_ids: Sequence[str], begin: int) -> list[TargetCheck]:
    """Returns the checks of a tournament from number `begin` on."""
    found = [
        (number, records.find(transaction, EvaluationRecord, evaluation_id))
        for number, evaluation_id in enumerate(evaluation_ids[begin:], start=begin)
    ]
    return [check_of(number, one) for number, one in found if one is not None]


def check_of(number: int, evaluation: EvaluationRecord) -> TargetCheck:
    """Converts an evaluation to a check of the target return."""
    checkpoint, result = evaluation.request.checkpoint, evaluation.result
    state, score, error, episodes = CheckState.DONE, None, 0.0, 0
    if evaluation.phase == WorkPhase.UNFINISHED:
        state = CheckState.PENDING
    elif evaluation.error == WITHDRAWN:
        state = CheckState.WITHDRAWN
    elif result is not None and result.evaluator_fault:
        state = CheckState.VOID
    elif result is not None and result.episodes and math.isfinite(result.mean_return):
        score, episodes = result.mean_return, result.episodes
        error = math.sqrt(max(result.variance, 0.0) / result.episodes)
    seconds = result.wall_seconds if result is not None else 0.0
    return TargetCheck(number, checkpoint.agent_id, checkpoint.manifest_digest, state, score, error, episodes, seconds)


def record_result(transaction: Transaction, evaluation: EvaluationRecord) -> None:
    """Records why a finished check does not end its tournament; records nothing if it does, or if it was withdrawn."""
    objective = records.find_tournament(transaction, evaluation.tournament_id).spec.objective
    if evaluation.error == WITHDRAWN or not objective.HasField("target_return"):
        return
    check = check_of(0, evaluation)
    if check.score is not None and check.score >= objective.target_return:
        return
    why = ""
    if evaluation.error:
        why = f" ({evaluation.error})"
    elif check.state is CheckState.VOID and evaluation.result is not None:
        why = f" (the evaluator plugin failed: {evaluation.result.evaluator_fault})"
    transaction.record_event(
        "target_not_confirmed",
        f"{describe(check, objective.target_return)}{why}; the tournament continues",
        tournament_id=evaluation.tournament_id,
        agent_id=check.agent_id,
    )
