"""Accepts callers without credentials, for networks that the operator trusts as a whole."""

from podrace.access.credentials import Credentials
from podrace.access.principal import ALL_ROLES, Principal

_ANYONE = Principal("anonymous", ALL_ROLES)


class AnyoneAuthenticator:
    """Gives every caller without a token all roles; see Authenticator."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns an anonymous caller with all roles, unless a token was presented."""
        return None if credentials.token else _ANYONE
