"""Checks the evaluations that a user's evaluator returns. Pure."""

import math
from collections.abc import Sequence

from agentpod.roles.objectives import MOST_MEASURES
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation

MOST_RETURNS = 1024
"""Number of episodes up to which an evaluation lists their returns: manifests and messages must stay small."""
MEAN_TOLERANCE = 1e-6
"""Difference between the mean return and the mean of the returns that counts as rounding, as a share of the largest."""


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
        **{f"episode_metrics[{name!r}]": value for name, value in sorted(evaluation.episode_metrics.items())},
    }
    for name, number in numbers.items():
        if not math.isfinite(number):
            return f"{name} = {number} is not finite"
    for name in ("variance", "mean_length_steps"):
        if numbers[name] < 0:
            return f"{name} = {numbers[name]:g} is negative"
    if len(evaluation.episode_metrics) > MOST_MEASURES:
        return f"it lists {len(evaluation.episode_metrics)} episode_metrics, at most {MOST_MEASURES}"
    if evaluation.episode_folds and len(evaluation.episode_folds) != len(evaluation.episode_returns):
        folds, returns = len(evaluation.episode_folds), len(evaluation.episode_returns)
        return f"it lists {folds} episode_folds for {returns} episode_returns"
    if evaluation.episodes < episodes:
        return f"it scored {evaluation.episodes} episodes instead of {episodes}"
    if problem := _fault_of_returns(evaluation):
        return problem
    scored = [evaluation.policy_digest, *evaluation.member_policy_digests]
    if scored != list(digests):
        shown = ", ".join(digest[:12] or "none" for digest in scored)
        return f"it scored another policy: digest {shown} instead of {', '.join(digest[:12] for digest in digests)}"
    return ""


def _fault_of_returns(evaluation: Evaluation) -> str:
    """Returns what is wrong with the returns of single episodes; empty if there are none."""
    returns = evaluation.episode_returns
    if not returns:
        return ""
    if len(returns) != evaluation.episodes:
        return f"it lists {len(returns)} episode_returns for {evaluation.episodes} episodes"
    for index, value in enumerate(returns):
        if not math.isfinite(value):
            return f"episode_returns[{index}] = {value} is not finite"
    mean = math.fsum(returns) / len(returns)
    if abs(mean - evaluation.mean_return) > MEAN_TOLERANCE * max(1.0, *map(abs, returns)):
        return f"mean_return = {evaluation.mean_return:g}, but the mean of episode_returns is {mean:g}"
    return ""
