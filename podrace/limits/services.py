"""Checks how services at addresses of specifications are called."""

from podrace import tls
from podrace.access.address_tokens import named_token, signed_token
from podrace.access.credentials import TokenSource
from podrace.errors import InvalidArgument
from podrace.limits.config import Allowed


def check_transport(target: str, allowed: Allowed) -> None:
    """Refuses a call without TLS where the operator demands it.

    Args:
        target: `host:port` or `unix:/path`; the latter needs no TLS.
        allowed: What the operator allows.

    Raises:
        InvalidArgument: This process has no certificate, so the call would not be encrypted.
    """
    if allowed.services_need_tls and not target.startswith("unix:") and tls.identity_for(target) is None:
        raise InvalidArgument(
            f"{target}: services are called by TLS only here (allow.services_need_tls), and this process has no"
            f" certificate; set {tls.CERTIFICATE}, {tls.KEY} and {tls.AUTHORITY}"
        )


def service_token(target: str, allowed: Allowed) -> TokenSource | None:
    """Returns the source of the token that the operator names for a service; None if there is none."""
    return named_token(target, dict(entry.split("=", 1) for entry in allowed.service_tokens))


def simulator_token(target: str, allowed: Allowed) -> TokenSource | None:
    """As `service_token`; for a simulator service on this machine also one that the key of this user signs."""
    return service_token(target, allowed) or signed_token(target)
