"""Decides whether a policy that is offered may replace the one that serves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from podrace.comparison.paired import LEAST_EPISODES, paired_difference


@dataclass(frozen=True)
class EvaluatedPolicy:
    """Result of an evaluation."""

    mean: float
    """Mean return."""
    variance: float
    """Variance of the return between episodes."""
    episodes: int
    """Number of episodes."""
    episode_returns: Sequence[float] = ()
    """Return of each episode, if the episodes are the same for every policy."""


class GateVerdict(NamedTuple):
    """Whether an offered policy may serve."""

    accepted: bool
    reason: str


ACCEPTED = GateVerdict(True, "no gate")


def decide_gate(offered: EvaluatedPolicy, serving: EvaluatedPolicy, maximum_errors: float) -> GateVerdict:
    """Compares two policies that were evaluated on the same episodes.

    The offered one is refused if its mean return is lower by more than `maximum_errors` standard errors of the
    difference. The error is that of paired differences where both have the returns of the same episodes, else sqrt(s1^2
    / n1 + s2^2 / n2).

    Args:
        offered: The policy that is offered.
        serving: The policy that serves.
        maximum_errors: Standard errors by which the offered one may be worse.
    """
    if not math.isfinite(offered.mean):
        return GateVerdict(False, f"its mean return is {offered.mean:g}")
    paired = min(len(offered.episode_returns), len(serving.episode_returns)) >= LEAST_EPISODES
    if paired:
        difference, error = paired_difference(offered.episode_returns, serving.episode_returns)
    else:
        difference = offered.mean - serving.mean
        error = math.sqrt(sum(one.variance / max(1, one.episodes) for one in (offered, serving)))
    compared = f"mean return {offered.mean:.6g} against {serving.mean:.6g}, standard error {error:.3g}"
    if difference < -maximum_errors * error or (error == 0.0 and difference < 0.0):
        return GateVerdict(False, f"{compared}: worse by more than {maximum_errors:g} standard errors")
    return GateVerdict(True, compared)
