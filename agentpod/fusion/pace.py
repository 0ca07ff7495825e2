"""Decides how long a fusion round waits for learners that are slower than the others, from the recent rounds."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

RECENT_ROUNDS = 9
"""Number of rounds whose intervals count; a single long one, during an evaluation for instance, changes nothing."""
TIMES_LATE = 3
"""How often a learner is dropped before a warning is logged."""


@dataclass(frozen=True)
class Pace:
    """The intervals between recent rounds, and which learners were late; immutable."""

    ended: float | None = None
    """When the last committed round ended; None while another one is repeated."""
    intervals: tuple[float, ...] = ()
    """Seconds from the end of a round until the leader arrived for the next one, without any waiting for others."""
    late: Mapping[int, int] = field(default_factory=dict)
    """How many rounds began without a learner that was expected, by index."""

    def straggler_seconds(self, minimum: float) -> float:
        """Returns how long a round waits: as long as the leader usually trains between two rounds, or `minimum`.

        A learner that needs twice as long as the leader still takes part. A fixed limit would drop a learner that is
        slower by a few percent if rounds are minutes apart, and all that it learns would be lost each time.
        """
        return max(minimum, statistics.median(self.intervals)) if self.intervals else minimum

    def after_begin(self, leader_arrival: float, missing: Iterable[int]) -> "Pace":
        """Returns the state after a round has formed without the `missing` learners."""
        intervals, late = self.intervals, dict(self.late)
        if self.ended is not None:
            intervals = (*intervals, max(0.0, leader_arrival - self.ended))[-RECENT_ROUNDS:]
        for index in missing:
            late[index] = late.get(index, 0) + 1
        return Pace(None, intervals, late)

    def after_commit(self, now: float) -> "Pace":
        """Returns the state after a round was committed."""
        return replace(self, ended=now)


def describe_late(after: Pace, missing: Iterable[int], limit_seconds: float) -> list[str]:
    """Returns a line for each learner that was just dropped for the TIMES_LATE-th time."""
    return [
        f"learner {index} was dropped from {TIMES_LATE} fusion rounds, because it arrives more than"
        f" {limit_seconds:.0f} s after the others; what it learns is lost each time, although its steps count: give it"
        " the same hardware and load as the others, or use fewer learners"
        for index in sorted(missing)
        if after.late[index] == TIMES_LATE
    ]
