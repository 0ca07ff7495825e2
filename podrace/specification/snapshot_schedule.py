"""Schedules snapshots of policies, and checkpoints between evaluations. Pure.

Snapshot k of an agent, or of the champion, is its policy after the tournament has been running for k periods, without
pauses. The number depends only on the running time, so a pod that takes over an agent and an orchestrator that restarts
continue with the same numbers.
"""

import math
from dataclasses import dataclass

from podrace.tournament.v1.tournament_pb2 import AssignmentSpec, EvaluationSpec, TournamentSpec

SHORTEST_PERIOD_SECONDS = 1.0
CHECKPOINT_SECONDS = 60
"""Default of `assignment.checkpoint_period`."""
_ROUNDING = 1e-9
"""Tolerance as a fraction of a period, because a sum of floats may be slightly less than a multiple of the period."""


def period_seconds(spec: EvaluationSpec) -> float | None:
    """Returns the period of snapshots; None if the specification wants no snapshots."""
    if not spec.HasField("snapshot_period"):
        return None
    return spec.snapshot_period.seconds + spec.snapshot_period.nanos / 1e9


def too_short(spec: EvaluationSpec) -> str:
    """Returns why the period is refused; empty if it is accepted."""
    period = period_seconds(spec)
    if period is None or period >= SHORTEST_PERIOD_SECONDS:
        return ""
    return (
        f"evaluation.snapshot_period = {period:g} s: expected at least {SHORTEST_PERIOD_SECONDS:g} s, because every"
        " agent stores a policy each period and each of them has to be evaluated"
    )


def fill_assignment(spec: AssignmentSpec) -> None:
    """Fills in the default of `checkpoint_period`."""
    if not spec.HasField("checkpoint_period"):
        spec.checkpoint_period.FromSeconds(CHECKPOINT_SECONDS)


def checkpoint_seconds(spec: TournamentSpec) -> float:
    """Returns the longest time between two checkpoints of an agent; infinite if they are stored with scores only.

    When `synchronous`, what a pod continues from must not depend on the speed of the machine. Specifications that
    earlier versions resolved do not have the field.
    """
    if spec.synchronous or not spec.assignment.HasField("checkpoint_period"):
        return math.inf
    return spec.assignment.checkpoint_period.ToNanoseconds() / 1e9


def checkpoints_too_often(spec: AssignmentSpec) -> str:
    """Returns why `checkpoint_period` is refused; empty if it is accepted."""
    period = spec.checkpoint_period.ToNanoseconds() / 1e9
    if period >= SHORTEST_PERIOD_SECONDS:
        return ""
    return f"assignment.checkpoint_period = {period:g} s: expected at least {SHORTEST_PERIOD_SECONDS:g} s"


def periods_passed(running_seconds: float, period: float) -> int:
    """Returns the number of the latest snapshot that was due; 0 before the first."""
    return math.floor(running_seconds / period + _ROUNDING)


@dataclass
class SnapshotSchedule:
    """Decides which snapshot is due.

    schedule = SnapshotSchedule(period, last=periods_passed(running_seconds, period))
    number = schedule.due(running_seconds)
    if number:
        ...                    # take the snapshot
        schedule.last = number
    """

    period_seconds: float
    last: int
    """Number of the last snapshot that was taken, or that was due before the agent started."""

    def due(self, running_seconds: float) -> int:
        """Returns the number of the snapshot to take now, 0 if none is due; if several were missed, the last one."""
        number = periods_passed(running_seconds, self.period_seconds)
        return number if number > self.last else 0
