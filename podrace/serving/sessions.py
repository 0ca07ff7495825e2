"""Keeps the recurrent state of episodes that clients play: by session, with bounds and expiry.

state = table.begin(key, version, state, now)     an episode begins
kept = table.take(key, lanes, now)                a step begins; no other step of the session may run
table.put(key, next_state, now)                   the step has ended

A session belongs to the version of the policy that began it, because the state of one policy means nothing to another.
Times are passed in.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podrace.errors import NOT_OPEN, Aborted, FailedPrecondition, InvalidArgument, ResourceExhausted

State = NDArray[np.float32]


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of sessions."""

    most: int = 10_000
    """Most sessions at a time."""
    idle_seconds: float = 300.0
    """Time without a request after which a session expires."""
    state_bytes: int = 256 << 20
    """Most bytes of the states of all sessions."""


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


class SessionTable:
    """Sessions by key, the least recently used first."""

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self._kept: dict[str, KeptState] = {}
        self._bytes = 0

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

    def begin(self, key: str, version: str, lanes: int, size: int, now: float) -> KeptState:
        """Opens a session, or begins its episodes again with another version, and marks it as busy.

        Raises:
            ResourceExhausted: There are too many sessions.
            Aborted: A request of the session is being computed.
        """
        self.expire(now)
        found = self._kept.get(key)
        if found is not None and found.busy:
            raise Aborted("another request of this session is being computed: wait for its answer")
        self.end(key)
        needed = lanes * size * 4
        if len(self._kept) >= self._limits.most or self._bytes + needed > self._limits.state_bytes:
            raise ResourceExhausted(
                f"{len(self._kept)} sessions with {self._bytes} bytes of state are open (limits: {self._limits.most},"
                f" {self._limits.state_bytes}): end sessions, or wait until one expires",
                retry_seconds=1.0,
            )
        self._bytes += needed
        self._kept[key] = kept = KeptState(version, np.zeros((lanes, size), np.float32), now, busy=True)
        return kept

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
            self._bytes -= found.state.nbytes

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
