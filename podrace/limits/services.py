"""Checks how services at addresses of specifications are called."""

from podrace import tls
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
