"""Limits how many specifications are being tried out or queued, so that one owner cannot delay the others for long."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from orchestrator.decisions.quotas import Quotas, check_inspections
from podrace.access.ownership import Ownership


class InspectionQueue:
    """Counts the specifications that a launcher tries out, one at a time and in the order of arrival.

    with queue.place(owner):
        found = await launcher.inspect(spec)

    Results are not kept for equal specifications: they also depend on files and modules that a specification names.
    """

    def __init__(self, quotas: Quotas) -> None:
        """Creates an empty queue.

        Args:
            quotas: The limits.
        """
        self._quotas, self._places = quotas, Counter[str]()

    @contextlib.contextmanager
    def place(self, owner: Ownership) -> Iterator[None]:
        """Holds a place while the block runs.

        Raises:
            ResourceExhausted: The owner, or all owners together, have as many as they may have (QUOTA_EXCEEDED).
        """
        name = owner.display_name
        check_inspections(self._quotas, owner, self._places[name], self._places.total())
        self._places[name] += 1
        try:
            yield
        finally:
            self._places[name] -= 1
            if not self._places[name]:
                del self._places[name]
