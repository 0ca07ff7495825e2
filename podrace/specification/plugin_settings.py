"""Fills in and checks the settings of an evaluator plugin. Pure.

`podrace.plugins.address` defines how a plugin is named.
"""

from podrace.plugins import address
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec

ANSWER_SECONDS = 300
"""Default time limit for one score."""
LONGEST_ANSWER_SECONDS = 1800
"""Deadline of EvaluatePolicy in the contract."""


def fill(evaluation: EvaluationSpec) -> None:
    """Sets the default time limit if an evaluator plugin is named."""
    if evaluation.HasField("evaluator") and not evaluation.HasField("answer_duration"):
        evaluation.answer_duration.FromSeconds(ANSWER_SECONDS)


def misplaced(evaluation: EvaluationSpec) -> str:
    """Returns what is wrong with the evaluator settings; empty if they are valid."""
    seconds = answer_seconds(evaluation)
    if not evaluation.HasField("evaluator"):
        alone = evaluation.HasField("answer_duration")
        return f"evaluation.answer_duration = {seconds:g} s: is a setting of evaluation.evaluator; name one" * alone
    if address.parse(evaluation.evaluator) is None:
        return f"evaluation.evaluator = {evaluation.evaluator!r}: {address.EXPECTED}"
    if seconds > LONGEST_ANSWER_SECONDS:
        return f"evaluation.answer_duration = {seconds:g} s: expected at most {LONGEST_ANSWER_SECONDS} s"
    return ""


def answer_seconds(evaluation: EvaluationSpec) -> float:
    """Returns the time limit for one score, in seconds."""
    return evaluation.answer_duration.ToNanoseconds() / 1e9
