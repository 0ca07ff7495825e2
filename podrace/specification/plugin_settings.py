"""What a specification can say of an evaluator of the user's own. Pure; how one is named is
podrace.plugins.address's.
"""

from podrace.plugins import address
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec

ANSWER_SECONDS = 300
"""How long a score may take where the specification does not say."""
LONGEST_ANSWER_SECONDS = 1800
"""Deadline of EvaluatePolicy in the contract."""


def fill(evaluation: EvaluationSpec) -> None:
    """Fills in how long an evaluator may take, where there is one."""
    if evaluation.HasField("evaluator") and not evaluation.HasField("answer_duration"):
        evaluation.answer_duration.FromSeconds(ANSWER_SECONDS)


def misplaced(evaluation: EvaluationSpec) -> str:
    """Says what is wrong with the evaluator of a specification; empty if all is well."""
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
    """How long a score may take."""
    return evaluation.answer_duration.ToNanoseconds() / 1e9
