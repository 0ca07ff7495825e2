"""Remembers the holders of valid tokens, so that a signature is verified once and not with every call."""

from podrace.access.principal import Principal

MOST_TOKENS = 50_000
"""Largest number of tokens: enough for 10,000 pods, each with its current, its previous and its next token."""
KEEP_SECONDS = 300.0
"""Longest time for which a verified token is kept: a token that its issuer revokes is noticed after this time."""


class KnownTokens:
    """The holders of tokens, until the token expires.

    The keys are the tokens themselves. Digests would cost more than the rest of the lookup and protect little: an
    attacker who can read the memory of a service finds its other secrets there too.

    known.keep(token, principal, now + KEEP_SECONDS)     # after its signature was verified, or by its issuer
    principal = known.find(token, now)
    """

    def __init__(self) -> None:
        """Starts without tokens."""
        self._known: dict[str, tuple[Principal, float]] = {}

    def find(self, token: str, now: float) -> Principal | None:
        """Returns the holder of a token; None if the token must be verified.

        Args:
            token: The token.
            now: Seconds since 1970.
        """
        found = self._known.get(token)
        if found is None:
            return None
        if now < found[1]:
            return found[0]
        del self._known[token]
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
        self._known[token] = principal, min(principal.expire_time, until)
