"""Checks the evaluations that a user's evaluator returns. Pure."""

import math
from collections.abc import Sequence

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation


def find_fault(evaluation: Evaluation, episodes: int, digests: Sequence[str]) -> str:
    """Returns in one line why an evaluation cannot be used as a score; empty if it can.

    Args:
        evaluation: What the evaluator returned.
        episodes: The least number of episodes that was requested.
        digests: Digests of the policies that were to be scored, in order.
    """
    numbers = {
        "mean_return": evaluation.mean_return,
        "variance": evaluation.variance,
        "mean_length_steps": evaluation.mean_length_steps,
        **{f"metrics[{name!r}]": value for name, value in sorted(evaluation.metrics.items())},
    }
    for name, number in numbers.items():
        if not math.isfinite(number):
            return f"{name} = {number} is not finite"
    for name in ("variance", "mean_length_steps"):
        if numbers[name] < 0:
            return f"{name} = {numbers[name]:g} is negative"
    if evaluation.episodes < episodes:
        return f"it scored {evaluation.episodes} episodes instead of {episodes}"
    scored = [evaluation.policy_digest, *evaluation.member_policy_digests]
    if scored != list(digests):
        shown = ", ".join(digest[:12] or "none" for digest in scored)
        return f"it scored another policy: digest {shown} instead of {', '.join(digest[:12] for digest in digests)}"
    return ""
