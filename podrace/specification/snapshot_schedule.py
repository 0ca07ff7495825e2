"""Owns when snapshots are due. Pure.

Snapshot k of an agent, or of the champion, is the policy as it stands when the tournament has been running for k
periods, pauses left out. The number follows from the time alone, so that a pod that takes over an agent, and an
orchestrator that begins again, go on with the same numbers.
"""

import math
from dataclasses import dataclass

from podrace.tournament.v1.tournament_pb2 import EvaluationSpec

SHORTEST_PERIOD_SECONDS = 1.0
_ROUNDING = 1e-9
"""Of a period: so little too early is in time, for a sum of floats may fall short of a multiple."""


def period_seconds(spec: EvaluationSpec) -> float | None:
    """The period of snapshots; None where none are wanted."""
    if not spec.HasField("snapshot_period"):
        return None
    return spec.snapshot_period.seconds + spec.snapshot_period.nanos / 1e9


def too_short(spec: EvaluationSpec) -> str:
    """Why a period is refused; empty if it is not."""
    period = period_seconds(spec)
    if period is None or period >= SHORTEST_PERIOD_SECONDS:
        return ""
    return (
        f"evaluation.snapshot_period = {period:g} s: expected at least {SHORTEST_PERIOD_SECONDS:g} s; every agent would"
        " store a policy so often, and every one of them is to be evaluated"
    )


def periods_passed(running_seconds: float, period: float) -> int:
    """The number of the snapshot that was due last; 0 before the first."""
    return math.floor(running_seconds / period + _ROUNDING)


@dataclass
class SnapshotSchedule:
    """Which snapshot is due.

    schedule = SnapshotSchedule(period, last=periods_passed(running_seconds, period))
    number = schedule.due(running_seconds)
    if number:
        ...                    # take it
        schedule.last = number
    """

    period_seconds: float
    last: int
    """Number of the last one taken, or due before there was anything to be taken."""

    def due(self, running_seconds: float) -> int:
        """The number of the snapshot to be taken now, 0 if there is none; of several that were missed, the last."""
        number = periods_passed(running_seconds, self.period_seconds)
        return number if number > self.last else 0
