"""Owns how long a custom part that keeps failing is left out, so that it does not cost a wait at every step. Pure.

patience = patience.after_failure(now, "gave no answer within 5 s")
patience.rests(now)
"""

from dataclasses import dataclass

FAILURES_FORGIVEN = 2
"""In a row; the next one has a rest follow."""
FIRST_REST_SECONDS = 10.0
LONGEST_REST_SECONDS = 600.0


@dataclass(frozen=True)
class Patience:
    """What is remembered of a part's failures since its last usable answer."""

    failures: int = 0
    """In a row."""
    last: str = ""
    """What the last one was, in words that follow the part's name."""
    until: float = -float("inf")
    """It is not asked before this moment, in seconds of a monotonic clock."""

    def after_failure(self, now: float, problem: str) -> "Patience":
        """What is remembered after one more failure."""
        failures = self.failures + 1
        return Patience(failures, problem, now + rest_seconds(failures))

    def rests(self, now: float) -> bool:
        """Whether the part is left out."""
        return now < self.until


def rest_seconds(failures: int) -> float:
    """How long a part rests after this many failures in a row: twice as long after each one that is not forgiven."""
    doublings = failures - FAILURES_FORGIVEN - 1
    if doublings < 0:
        return 0.0
    # A power of a large number would be infinite long after the limit is reached.
    return min(FIRST_REST_SECONDS * 2.0 ** min(doublings, 30), LONGEST_REST_SECONDS)
