"""Decides whether an address that a server listens on can be reached by other machines."""

import ipaddress
import socket

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


def is_local(listen: str) -> bool:
    """Whether only processes of this machine reach an address: a Unix socket, or a host whose addresses are loopback.

    A host that cannot be resolved, and an address of any other form, count as reachable.
    """
    if listen.startswith("unix:"):
        return True
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
