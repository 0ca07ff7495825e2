"""Limits how many calls per second each person makes: a token bucket for each owner.

Pods, services and operators are not limited: pods are limited by their number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podrace.access.ownership import Ownership, is_restricted, ownership_for
from podrace.access.principal import Principal
from podrace.errors import QUOTA_EXCEEDED, ResourceExhausted

BURST_SECONDS = 5.0
"""Length of a burst: after a pause this long, a caller may make the calls of this time at once."""
BUCKETS = 10_000
"""Number of callers that are remembered."""


@dataclass(frozen=True)
class CallBucket:
    """The token bucket of one caller."""

    calls: float
    time: float
    """Monotonic time at which `calls` was counted."""


def take(now: float, bucket: CallBucket | None, calls_per_second: float) -> tuple[CallBucket, float]:
    """Decides about one call. A pure function.

    Args:
        now: Monotonic time.
        bucket: State after the previous call; None: there was none.
        calls_per_second: The limit, above 0.

    Returns:
        The new state, and the seconds after which the call may be repeated; 0.0: it is allowed now.
    """
    most = max(1.0, calls_per_second * BURST_SECONDS)
    calls = most if bucket is None else min(most, bucket.calls + (now - bucket.time) * calls_per_second)
    if calls >= 1.0:
        return CallBucket(calls - 1.0, now), 0.0
    return CallBucket(calls, now), (1.0 - calls) / calls_per_second


class CallRates:
    """The calls of all persons at one server.

    rates.check(principal)      # raises ResourceExhausted
    """

    def __init__(self, calls_per_second: float, of_owners: Mapping[str, float], monotonic: Callable[[], float]) -> None:
        """Creates full buckets.

        Args:
            calls_per_second: Limit of one owner; 0: no limit.
            of_owners: Limits of single owners, by `NAME` or `NAMESPACE/NAME`; 0: no limit.
            monotonic: Returns a monotonic time in seconds.
        """
        self._calls_per_second, self._of_owners, self._monotonic = calls_per_second, of_owners, monotonic
        self._buckets: dict[Ownership, CallBucket] = {}

    def check(self, principal: Principal) -> None:
        """Counts a call.

        Raises:
            ResourceExhausted: The caller makes too many calls (QUOTA_EXCEEDED).
        """
        if not is_restricted(principal):
            return
        owner = ownership_for(principal)
        name = owner.display_name
        limit = self._of_owners.get(name, self._calls_per_second)
        if not limit:
            return
        # The most recent caller comes last.
        bucket, wait_seconds = take(self._monotonic(), self._buckets.pop(owner, None), limit)
        if len(self._buckets) >= BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[owner] = bucket
        if wait_seconds:
            own = name in self._of_owners
            setting = f"access.owner_calls_per_second.{name}" if own else "access.calls_per_second"
            raise ResourceExhausted(
                f"{name} makes more calls than {setting} = {limit:g} allows, which the operator sets; repeat the call"
                f" in {wait_seconds:.3g} s",
                reason=QUOTA_EXCEEDED,
                metadata={"setting": setting, "limit": f"{limit:g}", "owner": name},
                retry_seconds=wait_seconds,
            )
