"""Decides when a failing plugin is called again, so that it does not delay every step. Pure.

    breaker = breaker.after_failure(now, "no answer within 5 s")
    if breaker.is_open(now):
        ...                              # use the built-in component; breaker.summary is the reason
    breaker = CircuitBreaker()           # after a usable answer

After the first two failures in a row the plugin is called again at the next step. After every further failure it is
paused: for 10 s, 20 s, 40 s and so on, at most 600 s. One usable answer resets the count.
"""

import math
from dataclasses import dataclass

from podrace import backoff

FAILURES_BEFORE_PAUSE = 2
"""Failures in a row after which the plugin is still called at the next step."""
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0


@dataclass(frozen=True)
class CircuitBreaker:
    """The failures of a plugin since its last usable answer."""

    failures: int = 0
    """Number of failures in a row."""
    last_failure: str = ""
    """What went wrong the last time."""
    open_until: float = -math.inf
    """The plugin is not called before this time, in seconds of a monotonic clock."""

    def after_failure(self, now: float, failure: str) -> "CircuitBreaker":
        """Returns the state after one more failure.

        Args:
            now: Seconds of a monotonic clock.
            failure: What went wrong, as human-readable text.
        """
        failures = self.failures + 1
        return CircuitBreaker(failures, failure, now + pause_seconds(failures))

    def is_open(self, now: float) -> bool:
        """Whether the plugin is paused at this time, in seconds of the same clock."""
        return now < self.open_until

    @property
    def summary(self) -> str:
        """Why the plugin is paused, in one line."""
        return f"paused after {self.failures} failures in a row; last failure: {self.last_failure}"


def pause_seconds(failures: int) -> float:
    """Returns for how long a plugin is paused after this many failures in a row: 0, 0, 10, 20, 40, ..., 600 s."""
    return backoff.exponential(failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, forgiven=FAILURES_BEFORE_PAUSE)
