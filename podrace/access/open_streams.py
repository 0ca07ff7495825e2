"""Limits how many streams each person has open at a server, because a stream takes its resources until it ends.

Pods, services and operators are not limited, as in `podrace.access.call_rates`.
"""

from collections.abc import Callable, Mapping

from podrace.access.ownership import Ownership, is_restricted, ownership_for
from podrace.access.principal import Principal
from podrace.errors import QUOTA_EXCEEDED, ResourceExhausted

RETRY_SECONDS = 1.0
"""Time after which a refused stream may be opened again, if another one has ended."""


class OpenStreams:
    """The open streams of all persons at one server.

    end = streams.open(principal)      # raises ResourceExhausted
    ...
    end()
    """

    def __init__(self, most: int, of_owners: Mapping[str, float]) -> None:
        """Begins without streams.

        Args:
            most: Largest number of streams of one owner; 0: no limit.
            of_owners: Limits of single owners, by `NAME` or `NAMESPACE/NAME`; 0: no limit.
        """
        self._most, self._of_owners = most, of_owners
        self._open: dict[Ownership, int] = {}

    def open(self, principal: Principal) -> Callable[[], None]:
        """Counts a stream, and returns what must be called once when it ends.

        Raises:
            ResourceExhausted: The owner has too many streams open (QUOTA_EXCEEDED).
        """
        if not is_restricted(principal):
            return _nothing
        owner = ownership_for(principal)
        name = owner.display_name
        limit, count = self._of_owners.get(name, self._most), self._open.get(owner, 0)
        if limit and count >= limit:
            own = name in self._of_owners
            setting = f"access.owner_open_streams.{name}" if own else "access.open_streams"
            raise ResourceExhausted(
                f"{name} has {count} streams open, such as watches, and {setting} = {limit:g}, which the operator sets,"
                " allows no more; end one of them",
                reason=QUOTA_EXCEEDED,
                metadata={"setting": setting, "limit": f"{limit:g}", "owner": name},
                retry_seconds=RETRY_SECONDS,
            )
        self._open[owner] = count + 1
        return lambda: self._end(owner)

    def _end(self, owner: Ownership) -> None:
        left = self._open[owner] - 1
        if left:
            self._open[owner] = left
        else:
            del self._open[owner]


def _nothing() -> None:
    """Ends a stream that was not counted."""
