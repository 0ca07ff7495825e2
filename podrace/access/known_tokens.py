"""Remembers the holders of valid tokens, so that a signature is verified once and not with every call."""

import hashlib

from podrace.access.principal import Principal

MOST_TOKENS = 20_000
KEEP_SECONDS = 300.0
"""Longest time for which a verified token is kept: a token that its issuer revokes is noticed after this time."""


class KnownTokens:
    """The holders of tokens, by the digest of the token, until the token expires.

    known.keep(token, principal, now + KEEP_SECONDS)     # after its signature was verified, or by its issuer
    principal = known.find(token, now)
    """

    def __init__(self) -> None:
        """Starts without tokens."""
        self._known: dict[bytes, tuple[Principal, float]] = {}

    def find(self, token: str, now: float) -> Principal | None:
        """Returns the holder of a token; None if the token must be verified.

        Args:
            token: The token.
            now: Seconds since 1970.
        """
        digest = _digest(token)
        found = self._known.get(digest)
        if found is None:
            return None
        if now < found[1]:
            return found[0]
        del self._known[digest]
        return None

    def keep(self, token: str, principal: Principal, until: float) -> None:
        """Remembers a valid token.

        Args:
            token: The token.
            principal: Its holder.
            until: Seconds since 1970; it is forgotten earlier if it expires, or if there are too many others.
        """
        if len(self._known) >= MOST_TOKENS:
            # The oldest entry: it is verified again with its next call.
            del self._known[next(iter(self._known))]
        self._known[_digest(token)] = principal, min(principal.expire_time, until)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
