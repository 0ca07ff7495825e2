"""Counts how often the deadline of a role is doubled, because it was stuck although it answered."""

EASED_AFTER = 20.0
"""One doubling is forgotten after this many deadlines without a stuck role. So of the time in which the role was
watched, at most a twentieth was waited for doubled deadlines; and steps that are slow more often than that fit."""


class Doublings:
    """The doublings of one deadline. A role that answers may only have been slow, so it gets more time, for a while.

    Attributes:
        count: Number of doublings.
    """

    def __init__(self) -> None:
        self.count = 0
        self._since = 0.0

    def add(self, now: float) -> None:
        """Records that the role was stuck."""
        self.count += 1
        self._since = now

    def ease(self, now: float, deadline_seconds: float) -> None:
        """Forgets one doubling if the last change was long enough ago, in terms of the present deadline."""
        if self.count and now - self._since >= EASED_AFTER * deadline_seconds:
            self.count -= 1
            self._since = now
