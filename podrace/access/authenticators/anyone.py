"""Accepts callers without credentials, for networks that the operator trusts as a whole."""

from collections.abc import Iterable

from podrace.access.credentials import Credentials
from podrace.access.principal import ALL_ROLES, Principal


class AnyoneAuthenticator:
    """Gives every caller without a token some roles; see Authenticator."""

    def __init__(self, roles: Iterable[int] = ALL_ROLES) -> None:
        """Creates the authenticator.

        Args:
            roles: Values of the contract's Role.
        """
        self._anyone = Principal("anonymous", frozenset(roles))

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns an anonymous caller, unless a token was presented."""
        return None if credentials.token else self._anyone
