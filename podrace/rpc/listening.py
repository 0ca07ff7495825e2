"""Refuses addresses that other machines reach, for servers without TLS."""

from podrace.access.sending import is_local
from podrace.errors import FailedPrecondition

NAMED = "PODRACE_TLS_CERTIFICATE_FILE, PODRACE_TLS_KEY_FILE and PODRACE_TLS_AUTHORITY_FILE"


def check_local(listen: str) -> None:
    """Refuses an address that other machines reach, for a server without TLS.

    Raises:
        FailedPrecondition: Other machines reach it; the message says what to do.
    """
    if not is_local(listen):
        raise FailedPrecondition(
            f"cannot listen on {listen} without TLS, because other machines reach it: set {NAMED} (`podrace certs make"
            " FOLDER` makes the files), listen on 127.0.0.1 or unix:/path, or start with --insecure"
        )
