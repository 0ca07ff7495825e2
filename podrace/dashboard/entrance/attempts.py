"""Limits how often a machine may fail to sign in: a token bucket for each address, and one for all together."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from podrace.errors import ResourceExhausted

MOST_ADDRESSES = 10_000
"""Addresses that are remembered."""


@dataclass(frozen=True)
class AttemptLimit:
    """Failures that are allowed at once, and how fast they are forgotten."""

    burst: float
    per_second: float


EACH = AttemptLimit(burst=10.0, per_second=1 / 6)
"""Of one address, or of one network of IPv6 (/64)."""
ALL = AttemptLimit(burst=100.0, per_second=2.0)
"""Of all addresses together, which also limits the calls to the mesh."""


@dataclass(frozen=True)
class AttemptBucket:
    """Failures that are still allowed, at a time."""

    left: float
    time: float
    """Monotonic time in seconds."""


def refilled(now: float, bucket: AttemptBucket | None, limit: AttemptLimit) -> AttemptBucket:
    """Returns a bucket with what has been forgotten since; a full one for None. Pure."""
    if bucket is None:
        return AttemptBucket(limit.burst, now)
    return AttemptBucket(min(limit.burst, bucket.left + (now - bucket.time) * limit.per_second), now)


class SignInAttempts:
    """The attempts of all machines. An attempt counts as failed until it has succeeded, which limits many at once.

    attempts.begin(address)          # raises ResourceExhausted
    ...
    attempts.succeeded(address)
    """

    def __init__(self, clock: Callable[[], float], each: AttemptLimit = EACH, together: AttemptLimit = ALL) -> None:
        """Has seen no attempt.

        Args:
            clock: Monotonic time in seconds.
            each: Limit of one address.
            together: Limit of all.
        """
        self._clock, self._each, self._together = clock, each, together
        self._all = refilled(clock(), None, together)
        self._buckets: dict[str, AttemptBucket] = {}

    def begin(self, address: str) -> None:
        """Counts an attempt.

        Raises:
            ResourceExhausted: There were too many.
        """
        now, name = self._clock(), network_of(address)
        own = refilled(now, self._buckets.pop(name, None), self._each)
        self._all = refilled(now, self._all, self._together)
        wait = max((1.0 - own.left) / self._each.per_second, (1.0 - self._all.left) / self._together.per_second)
        if wait > 0.0:
            self._keep(name, own)
            raise ResourceExhausted(f"too many attempts to sign in; try again in {max(1.0, wait):.0f} s")
        self._keep(name, AttemptBucket(own.left - 1.0, now))
        self._all = AttemptBucket(self._all.left - 1.0, now)

    def succeeded(self, address: str) -> None:
        """Takes back an attempt that was none."""
        name = network_of(address)
        if own := self._buckets.get(name):
            self._buckets[name] = AttemptBucket(min(self._each.burst, own.left + 1.0), own.time)
        self._all = AttemptBucket(min(self._together.burst, self._all.left + 1.0), self._all.time)

    def _keep(self, name: str, bucket: AttemptBucket) -> None:
        if len(self._buckets) >= MOST_ADDRESSES:
            # The address whose last attempt is the longest ago.
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = bucket


def network_of(address: str) -> str:
    """Returns what is limited together: an address of IPv4, or the /64 network of one of IPv6, which one owner has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
