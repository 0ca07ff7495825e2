"""Keeps the recurrent state of episodes that clients play: by session, with bounds and expiry.

kept = table.begin(key, version, lanes, size, now)     an episode begins
kept = table.take(key, lanes, now)                     a step begins; no other step of the session may run
table.put(key, kept, next_state, now)                  the step has ended

A session belongs to the version of the policy that began it, because the state of one policy means nothing to another.
Times are passed in.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from podrace.errors import NOT_OPEN, QUOTA_EXCEEDED, Aborted, FailedPrecondition, InvalidArgument, ResourceExhausted

State = NDArray[np.float32]


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of sessions."""

    maximum: int = 10_000
    """Most sessions at a time."""
    idle_seconds: float = 300.0
    """Time without a request after which a session expires."""
    state_bytes: int = 256 << 20
    """Most bytes of the states of all sessions."""
    maximum_of_owner: int = 2_500
    """Most sessions of one user or viewer at a time. Services and operators are not limited. 0: no limit."""
    state_bytes_of_owner: int = 64 << 20
    """Most bytes of the states of one user or viewer. 0: no limit."""


class _Usage(NamedTuple):
    sessions: int = 0
    state_bytes: int = 0


@dataclass
class KeptState:
    """State of one session."""

    version: str
    """Version that answers the session."""
    state: State
    """[N, S]: one row for each environment."""
    last_use: float
    busy: bool = False
    """Whether a step is being computed."""
    owner: str = ""
    """Whose session it is; empty: of a caller that is not limited."""


class SessionTable:
    """Sessions by key, the least recently used first."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._kept: dict[str, KeptState] = {}
        self._bytes = 0
        self._usage: dict[str, _Usage] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def take(self, key: str, lanes: int, now: float) -> KeptState:
        """Marks a session as busy and returns it.

        Raises:
            FailedPrecondition: The session is unknown or has expired (NOT_OPEN).
            InvalidArgument: It has another number of environments.
            Aborted: Another request of the session is being computed.
        """
        self.expire(now)
        found = self._kept.get(key)
        if found is None:
            raise FailedPrecondition("the session is unknown or has expired: begin an episode", reason=NOT_OPEN)
        if found.busy:
            raise Aborted("another request of this session is being computed: wait for its answer")
        if len(found.state) != lanes:
            raise InvalidArgument(f"{lanes} observations in a session of {len(found.state)} environments")
        found.busy = True
        return found

    def begin(self, key: str, version: str, lanes: int, size: int, now: float, owner: str = "") -> KeptState:
        """Opens a session, or begins its episodes again with another version, and marks it as busy.

        Args:
            key: The session.
            version: Version that answers it.
            lanes: Number N of environments.
            size: Size S of the state of one.
            now: Time.
            owner: Whose session it is; empty: of a caller that is not limited.

        Raises:
            ResourceExhausted: There are too many sessions, of this owner (QUOTA_EXCEEDED) or of all.
            Aborted: A request of the session is being computed.
        """
        self.expire(now)
        found = self._kept.get(key)
        if found is not None and found.busy:
            raise Aborted("another request of this session is being computed: wait for its answer")
        self.end(key)
        needed = lanes * size * 4
        if len(self._kept) >= self._limits.maximum or self._bytes + needed > self._limits.state_bytes:
            raise ResourceExhausted(
                f"{len(self._kept)} sessions with {self._bytes} bytes of state are open (limits:"
                f" {self._limits.maximum}, {self._limits.state_bytes}): end sessions, or wait until one expires",
                retry_seconds=1.0,
            )
        self._check_owner(owner, needed)
        self._count(owner, 1, needed)
        self._kept[key] = kept = KeptState(version, np.zeros((lanes, size), np.float32), now, busy=True, owner=owner)
        return kept

    def _check_owner(self, owner: str, needed: int) -> None:
        used = self._usage.get(owner, _Usage())
        limits = {
            "maximum_of_owner": (used.sessions + 1, self._limits.maximum_of_owner),
            "state_bytes_of_owner": (used.state_bytes + needed, self._limits.state_bytes_of_owner),
        }
        for name, (wanted, limit) in limits.items():
            if owner and limit and wanted > limit:
                setting = f"limits.sessions.{name}"
                raise ResourceExhausted(
                    f"{owner} has {used.sessions} sessions with {used.state_bytes} bytes of state, and {setting} ="
                    f" {limit} allows no more: end sessions, or wait until one expires",
                    reason=QUOTA_EXCEEDED,
                    metadata={"setting": setting, "limit": str(limit), "owner": owner},
                    retry_seconds=1.0,
                )

    def _count(self, owner: str, sessions: int, state_bytes: int) -> None:
        self._bytes += state_bytes
        before = self._usage.pop(owner, _Usage())
        if before.sessions + sessions:
            self._usage[owner] = _Usage(before.sessions + sessions, before.state_bytes + state_bytes)

    def put(self, key: str, kept: KeptState, state: State | None, now: float) -> None:
        """Ends a step; with a state of None it failed, and the session keeps the state that it had."""
        kept.busy, kept.last_use = False, now
        if state is not None:
            kept.state = state
        if self._kept.get(key) is kept:
            # To the end: the first is the least recently used one.
            self._kept[key] = self._kept.pop(key)

    def end(self, key: str) -> None:
        """Ends a session; has no effect if there is none."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._count(found.owner, -1, -found.state.nbytes)

    def expire(self, now: float) -> None:
        """Ends sessions that were not used for too long."""
        for key, kept in list(self._kept.items()):
            if now - kept.last_use < self._limits.idle_seconds:
                return
            if not kept.busy:
                self.end(key)

    def versions(self) -> set[str]:
        """Returns the versions that sessions need."""
        return {kept.version for kept in self._kept.values()}

    def end_of_version(self, version: str) -> int:
        """Ends the sessions of a version, and returns how many there were."""
        found = [key for key, kept in self._kept.items() if kept.version == version]
        for key in found:
            self.end(key)
        return len(found)
