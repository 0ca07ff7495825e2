"""Defines the clock that is passed to all code that needs the time, so that tests can set it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for timestamps, monotonic time for durations.

    expires = clock.monotonic() + lease_seconds
    """

    def wall(self) -> float:
        """Seconds since 1970, UTC; can jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases within a process."""
        ...


class SystemClock:
    """The clock of the machine."""

    def wall(self) -> float:
        """See Clock."""
        return time.time()

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()
