"""Keeps the sessions of persons who have signed in: how many there may be, and when each ends.

A session is found by the digest of its id, so the search does not depend on how much of a guessed id is right, and what
is kept here opens no session. The token of the person is in the reader alone.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from podrace.dashboard.entrance.reader import Person, Reader

LONGEST_ID = 100
ID_BYTES = 32


@dataclass(frozen=True)
class SignInLimits:
    """Limits of all sessions."""

    longest_seconds: float = 12 * 3600.0
    """A session ends after this time, or with its token."""
    idle_seconds: float = 1800.0
    """A session without a request ends after this time. An open page counts as one."""
    most: int = 200
    """Sessions at the same time."""
    most_of_person: int = 10


@dataclass(frozen=True)
class Session:
    """A session of a person."""

    person: Person
    reader: Reader


def has_ended(now: float, end: float, used: float, limits: SignInLimits) -> bool:
    """Whether a session has ended by itself. Pure.

    Args:
        now: Monotonic time, as all others.
        end: When it ends at the latest.
        used: When it was used last.
        limits: When it ends if it is not used.
    """
    return now >= end or now - used >= limits.idle_seconds


def to_end(sessions: Mapping[str, Session], person: Person, limits: SignInLimits) -> list[str]:
    """Returns the sessions that end when a person begins another one: those that were not used for longest. Pure.

    Args:
        sessions: All sessions by digest.
        person: The person.
        limits: How many there may be.
    """

    def surplus(names: Iterable[str], most: int) -> list[str]:
        ordered = sorted(names, key=lambda one: sessions[one].reader.used)
        return ordered[: max(0, len(ordered) - most + 1)]

    own = surplus((name for name, one in sessions.items() if one.person == person), limits.most_of_person)
    return own + surplus(sessions.keys() - set(own), limits.most)


def digest_of(id: str) -> str:
    """Returns the name under which a session is kept."""
    return hashlib.sha256(id.encode(errors="backslashreplace")).hexdigest()


class Sessions:
    """The sessions of one gateway. What it returns as ended is closed by the caller.

    id, ended = sessions.begin(Session(("", "alice"), reader))
    session = sessions.find(id)
    ended = sessions.take_ended()
    """

    def __init__(self, clock: Callable[[], float], limits: SignInLimits | None = None) -> None:
        """Has no session.

        Args:
            clock: Monotonic time in seconds.
            limits: How many there may be, and how long; None: the defaults.
        """
        self._clock, self.limits = clock, limits or SignInLimits()
        self._sessions: dict[str, Session] = {}

    def begin(self, session: Session) -> tuple[str, list[Session]]:
        """Begins a session; returns its id, and the sessions that end because there are too many."""
        ended = [self._sessions.pop(name) for name in to_end(self._sessions, session.person, self.limits)]
        id = secrets.token_urlsafe(ID_BYTES)
        self._sessions[digest_of(id)] = session
        return id, ended

    def find(self, id: str) -> Session | None:
        """Returns a session, which counts as used now; None: there is none, or it has ended."""
        found = self._sessions.get(digest_of(id)) if 0 < len(id) <= LONGEST_ID else None
        if found is None or found.reader.ended or self._has_ended(found):
            return None
        found.reader.use()
        return found

    def take(self, reader: Reader) -> list[Session]:
        """Forgets the session of a reader, and returns it."""
        return self._take(lambda one: one.reader is reader)

    def take_ended(self) -> list[Session]:
        """Forgets the sessions that have ended by themselves, and returns them."""
        return self._take(self._has_ended)

    def take_all(self) -> list[Session]:
        """Forgets all sessions, and returns them."""
        return self._take(lambda one: True)

    def _has_ended(self, session: Session) -> bool:
        return has_ended(self._clock(), session.reader.end, session.reader.used, self.limits)

    def _take(self, chosen: Callable[[Session], bool]) -> list[Session]:
        names = [name for name, one in self._sessions.items() if chosen(one)]
        return [self._sessions.pop(name) for name in names]

    def __len__(self) -> int:
        return len(self._sessions)
