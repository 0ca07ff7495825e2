"""Identifies the holder of the static token of one machine; `podrace.access.token_file` keeps the file."""

import hashlib
import hmac

from podrace.access.credentials import Credentials
from podrace.access.principal import Principal, roles_with_included
from podrace.access.v1 import access_pb2


class StaticTokenAuthenticator:
    """Recognizes one token, whose holder is an operator; see Authenticator."""

    def __init__(self, token: str, name: str = "operator") -> None:
        """Creates the authenticator.

        Args:
            token: The token.
            name: Name of its holder.
        """
        self._digest = hashlib.sha256(token.encode()).digest()
        self._holder = Principal(name, roles_with_included({access_pb2.ROLE_OPERATOR}), via="token")

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns the operator if the token is the known one."""
        presented = hashlib.sha256(credentials.token.encode()).digest()
        return self._holder if hmac.compare_digest(presented, self._digest) else None
