"""Owns what time is: passed in wherever it is read, so that a test can turn it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two times: one to tell people, one to count with.

    expires = clock.monotonic() + lease_seconds
    """

    def wall(self) -> float:
        """Seconds since 1970, UTC; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment of this process; never goes back."""
        ...


class SystemClock:
    """The machine's own."""

    def wall(self) -> float:
        """See Clock."""
        return time.time()

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()
