"""Defines what a contender hands over after a run, whatever library it is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.comparison.fresh import Policy


@dataclass(frozen=True)
class Moment:
    """The policy that a contender would have delivered at one time of the run."""

    seconds: float
    environment_steps: int
    policy: Policy


@dataclass(frozen=True)
class Outcome:
    """The result of a run before its policies are evaluated on fresh episodes."""

    policy: Policy | None
    """The final policy; None if there is none."""
    wall_seconds: float
    environment_steps: int
    agents: int
    """Agents or trials that were started."""
    reported_score: float | None = None
    reported_error: float | None = None
    share_behind: float | None = None
    """Share of all environment steps that the final policy was trained on."""
    evaluation_share: float | None = None
    """Share of the time of training pods in which an evaluation ran."""
    stopped_agents: int | None = None
    """Agents that were stopped early."""
    correlation: float | None = None
    """Correlation of the returns of different agents on the same episodes."""
    moments: Sequence[Moment] = field(default_factory=list)
    """In order of time, without the end."""
    reason: str = ""
    """Why there is no policy."""


def moments_at(published: Sequence[tuple[float, int, float, Policy]], ends: Sequence[float]) -> list[Moment]:
    """Returns what would have been delivered at given times: the published policy with the highest score so far.

    Args:
        published: Seconds, environment steps of all trials until then, score and policy, in order of time.
        ends: The times in seconds, ascending. Times before the first policy have no moment.
    """
    found = []
    for end in ends:
        before = [one for one in published if one[0] <= end]
        if before:
            best = max(before, key=lambda one: one[2])
            found.append(Moment(end, before[-1][1], best[3]))
    return found
