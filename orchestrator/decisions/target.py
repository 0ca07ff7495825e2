"""Decides when a candidate that reached `target_return` is checked on new episodes, and whether it passes. Pure.

The first candidate of a board has the highest of many noisy scores, so it often reaches a target that its policy does
not. The target is therefore met only by a score over new episodes, one check for each candidate:

- Once the score of the first candidate of the board reaches the target, the candidates of the board whose scores do are
  checked in the order of the board, one at a time. The board ranks by estimates, so a lower one may have a lucky score.
- All checks together take at most `evaluation.share` of the pods' time, except the first one. In a synchronous
  tournament there are at most as many checks as complete rounds instead, because nothing there may depend on speed.
- A check that was withdrawn, or that the built-in evaluator made in place of a failing plugin, does not count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from podrace.leaderboard.v1.leaderboard_pb2 import Candidate


class CheckState(Enum):
    """State of a check."""

    PENDING = "pending"
    """The evaluation is not done."""
    DONE = "done"
    """It has a score, or has failed."""
    WITHDRAWN = "withdrawn"
    """It was not made, because the tournament ended before; its candidate may be checked again."""
    VOID = "void"
    """The built-in evaluator made it in place of a failing plugin. It does not count; its candidate may be checked
    again."""


@dataclass(frozen=True)
class TargetCheck:
    """The evaluation of one candidate on new episodes."""

    number: int
    """Position among the checks of its tournament, from 0."""
    agent_id: str
    candidate_id: str
    state: CheckState
    score: float | None = None
    """Mean return; None while it is pending and if it failed."""
    standard_error: float = 0.0
    """Standard error of that mean."""
    episodes: int = 0
    seconds: float = 0.0
    """Wall-clock time that the evaluation took."""


def describe(check: TargetCheck, target: float) -> str:
    """Returns the result of a check in one line."""
    name = check.agent_id.rpartition("-")[2]
    if check.score is None:
        return f"{name} could not be evaluated on new episodes, the target is {target:g}"
    return (
        f"{name} scores {check.score:.5g} ± {check.standard_error:.2g} on {check.episodes} new episodes,"
        f" the target is {target:g}"
    )


def confirmed(checks: Iterable[TargetCheck], target: float) -> TargetCheck | None:
    """Returns the first check whose score reaches the target; None if there is none."""
    return next((check for check in checks if check.score is not None and check.score >= target), None)


def pending(checks: Iterable[TargetCheck]) -> TargetCheck | None:
    """Returns the check that is under way; None if there is none."""
    return next((check for check in checks if check.state is CheckState.PENDING), None)


def affordable(checks: Sequence[TargetCheck], share: float, pod_seconds: float) -> bool:
    """Whether one more check keeps all of them within their share of the pods' time; the first one always may.

    Args:
        checks: Checks of the tournament so far. The next one is expected to take as long as the last.
        share: Largest share of the pods' time, between 0 and 1.
        pod_seconds: Time of all pods since the tournament began.
    """
    if not checks:
        return True
    return sum(check.seconds for check in checks) + checks[-1].seconds <= share * pod_seconds


def rounds_allow(checks: Sequence[TargetCheck], rounds_done: int) -> bool:
    """Whether a synchronous tournament may make one more check. A withdrawn one is made again in the same round."""
    return sum(check.state is not CheckState.WITHDRAWN for check in checks) < rounds_done


def next_candidate(board: Iterable[Candidate], checks: Iterable[TargetCheck], target: float) -> Candidate | None:
    """Returns the first candidate of a board that reaches the target and was not checked; None if there is none."""
    again = (CheckState.WITHDRAWN, CheckState.VOID)
    checked = {check.candidate_id for check in checks if check.state not in again}
    return next((one for one in board if one.score >= target and one.candidate_id not in checked), None)


def work_to_interrupt(training: Iterable[tuple[str, float | None]]) -> str:
    """Returns which agent is interrupted so that a check need not wait for the end of an assignment; empty if none.

    It is one without a score, otherwise the one with the lowest, so that the training of the best agent continues.

    Args:
        training: Agents that are trained, the one assigned first comes first, each with its score.
    """
    ordered = sorted(training, key=lambda agent: (agent[1] is not None, agent[1] or 0.0))
    return ordered[0][0] if ordered else ""
