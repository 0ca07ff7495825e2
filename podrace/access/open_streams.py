"""Limits how many streams each person has open at a server, because a stream takes its resources until it ends.

Pods, services and operators are not limited, as in `podrace.access.call_rates`. Streams of callers that are not
authenticated, which are watches of the health service, are limited by the address of the caller.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from podrace.access.ownership import Ownership, is_restricted, ownership_for
from podrace.access.principal import Principal
from podrace.errors import QUOTA_EXCEEDED, ResourceExhausted

RETRY_SECONDS = 1.0
"""Time after which a refused stream may be opened again, if another one has ended."""

MOST_OF_ADDRESS = 64
"""Most streams of one address that are open at a time without authentication."""
_UNIX = "unix"


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


class OpenPublicStreams:
    """The open streams at one server of callers that are not authenticated, by their address.

    end = streams.open("ipv4:10.0.0.7:40000")      # raises ResourceExhausted
    ...
    end()
    """

    def __init__(self, most: int = MOST_OF_ADDRESS) -> None:
        """Begins without streams; `most` is the largest number of one address."""
        self._most = most
        self._open: Counter[str] = Counter()

    def open(self, peer: str) -> Callable[[], None]:
        """Counts a stream, and returns what must be called once when it ends.

        Args:
            peer: Address of the caller as gRPC writes it; all connections of an address count together.

        Raises:
            ResourceExhausted: The address has too many streams open.
        """
        address = host_of(peer)
        if self._open[address] >= self._most:
            raise ResourceExhausted(
                f"{address} has {self._most} health watches open, and a server allows one address no more;"
                " end one of them, or call Check",
                retry_seconds=RETRY_SECONDS,
            )
        self._open[address] += 1
        return lambda: self._end(address)

    def _end(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def host_of(peer: str) -> str:
    """Returns the address of a caller without its port, which differs for each connection.

    Args:
        peer: Such as `ipv4:10.0.0.7:40000`, `ipv6:%5B::1%5D:40000` or `unix:`.
    """
    kind, _, rest = peer.partition(":")
    return _UNIX if kind == _UNIX else unquote(rest.rpartition(":")[0])


def _nothing() -> None:
    """Ends a stream that was not counted."""
