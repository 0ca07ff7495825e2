"""Defines what a caller presents, and how an authenticator turns it into a principal."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from podrace.access.principal import Principal
from podrace.errors import Unavailable

AUTHORIZATION = "authorization"
"""Key of the metadata that carries a token."""
BEARER = "Bearer "

NO_TRANSPORT: Mapping[str, Iterable[bytes]] = MappingProxyType({})
"""The connection has no properties, or they do not matter."""
TokenSource = Callable[[], str]
"""Returns the token to send with the next call; empty: none. Called for every call, so a token can be renewed. Raises
NoListener if it depends on who listens at the address, and nothing does."""


class NoListener(Unavailable):
    """Nothing listens at the address, so it is unknown whether the token may be sent. The call was not made."""


class Credentials(NamedTuple):
    """What a caller presents with a call. A tuple, because one is made for each call."""

    token: str = ""
    """Bearer token; empty: none."""
    peer: str = ""
    """Address of the caller as gRPC writes it, for instance `ipv4:127.0.0.1:40000`."""
    transport: Mapping[str, Iterable[bytes]] = NO_TRANSPORT
    """Properties of the connection as gRPC names them: `transport_security_type`, `peer_spiffe_id`, ..."""


class Authenticator(Protocol):
    """Finds out who calls.

    for authenticator in authenticators:
        principal = await authenticator.authenticate(credentials)
        if principal is not None:
            return principal
    """

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns who calls; None if these credentials are of another kind.

        Raises:
            Unauthenticated: The credentials are of this kind and invalid; the message says what to do.
        """
        ...


@runtime_checkable
class ConnectionCheck(Protocol):
    """An authenticator that also checks the connection of callers that it does not identify, with every call."""

    def check_connection(self, credentials: Credentials) -> None:
        """Refuses a call on this connection, whatever token it presents.

        Raises:
            Unauthenticated: The message says what to do.
        """
        ...


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the bearer token in the metadata of a call; empty if there is none."""
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value.startswith(BEARER):
            return value.removeprefix(BEARER)
    return ""
