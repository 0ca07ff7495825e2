"""Identifies callers by tokens that the mesh key has signed: services, pods, and holders of `podrace token`."""

from collections.abc import Sequence

from podrace.access.credentials import Credentials
from podrace.access.mesh_key import PublicKeys
from podrace.access.principal import Principal
from podrace.access.tokens import principal_of


class SignedTokenAuthenticator:
    """Verifies tokens of the mesh key; see Authenticator."""

    def __init__(self, keys: PublicKeys, audiences: Sequence[str]) -> None:
        """Creates the authenticator.

        Args:
            keys: Public keys of the mesh.
            audiences: Audiences, one of which the tokens must have. Read with each call.
        """
        self._keys, self._audiences = keys, audiences

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns the subject of a token that one of the keys has signed."""
        if not self._keys.have_signed(credentials.token):
            return None
        return principal_of(self._keys.verify(credentials.token, audience=self._audiences))
