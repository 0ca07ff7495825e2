"""What is wrong with the answer of an evaluator that somebody else wrote, and when to ask it again. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation

SHORTEST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 1800.0
PAUSE_FOR_LOST_TIME = 4.0
"""Where a fault took long to be noticed, the first pause is this many times as long: a fifth of the time is spent on
waiting for answers that do not come, until the longest pause is reached."""


@dataclass
class Pauses:
    """When to ask again: after each fault in a row the pause is twice as long."""

    faults_in_row: int = 0
    until_seconds: float = -math.inf

    def due(self, now_seconds: float) -> bool:
        """Whether to ask now."""
        return now_seconds >= self.until_seconds

    def fault(self, now_seconds: float, lost_seconds: float) -> float:
        """Takes note of a fault that took so long to be noticed; returns how long not to ask."""
        first = max(SHORTEST_PAUSE_SECONDS, PAUSE_FOR_LOST_TIME * lost_seconds)
        pause_seconds = min(LONGEST_PAUSE_SECONDS, first * 2.0 ** min(self.faults_in_row, 30))
        self.faults_in_row += 1
        self.until_seconds = now_seconds + pause_seconds
        return pause_seconds

    def well(self) -> None:
        """Takes note of a good answer."""
        self.faults_in_row, self.until_seconds = 0, -math.inf


def nonsense(evaluation: Evaluation, episodes: int, digests: Sequence[str]) -> str:
    """Says in a line why an evaluation cannot be taken for a score; empty if it can.

    Args:
        evaluation: What was answered.
        episodes: Least number of them that was asked for.
        digests: Of the policies that were to be scored.
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
