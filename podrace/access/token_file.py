"""Finds the operator's token of one machine: the services create the file, and the `podrace` command reads it.

    PODRACE_TOKEN         the token itself
    PODRACE_TOKEN_FILE    file with the token; default ~/.config/podrace/token

The command sends a token from one of these variables to this machine and over TLS. It sends that of the default file
only to a port of this machine whose listener belongs to its own user (or to root): another user of the machine could
have bound the port first, to collect tokens.
"""

import contextlib
import functools
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from podrace import tls
from podrace.access.credentials import NoListener, TokenSource
from podrace.access.private_file import make_private_file, read_private_file
from podrace.access.sending import each_address, is_loopback
from podrace.errors import FailedPrecondition

TOKEN, TOKEN_FILE = "PODRACE_TOKEN", "PODRACE_TOKEN_FILE"
MESH_KEY = "mesh.key"
"""Name of the private key of the mesh, next to the token file."""
AUDIT_LOG = "audit.log"
_LISTENING = "0A"
_LISTENERS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def token_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the token file, which need not exist.

    Raises:
        FailedPrecondition: The user has no home folder.
    """
    if named := environ.get(TOKEN_FILE):
        return Path(named)
    try:
        return Path.home() / ".config" / "podrace" / "token"
    except RuntimeError:
        raise FailedPrecondition(f"this user has no home folder; set {TOKEN_FILE} to a file of this user") from None


def load_or_make_token(path: Path) -> str:
    """Returns the token in a file, which is made with a random one if it does not exist.

    Raises:
        FailedPrecondition: The file cannot be made or read, others can read it, or it is empty.
    """
    return _checked(make_private_file(path, lambda: f"{secrets.token_urlsafe(32)}\n".encode()), path)


def _checked(content: bytes, path: Path) -> str:
    token = content.decode(errors="replace").strip()
    if not token or not token.isascii() or any(character.isspace() for character in token):
        raise FailedPrecondition(
            f"{path}: contains no token; remove it, and the service makes a new one when it starts"
        )
    return token


def operator_token(address: str, environ: Mapping[str, str] = os.environ) -> TokenSource | None:
    """Returns the source of the token that the command sends to an address; None: it sends none.

    The file is read with each call; the source raises FailedPrecondition if others can read it.
    """
    if address.startswith("unix:"):
        return None
    if token := environ.get(TOKEN):
        return lambda: token
    path = token_path(environ)
    if environ.get(TOKEN_FILE):
        return functools.partial(_token_in, path)
    if tls.identity_for(address) or not is_loopback(address):
        return None
    return lambda: _token_for_own_listener(path, address)


def _token_for_own_listener(path: Path, address: str) -> str:
    """Returns the token of the default file if the listener at the address may have it; else an empty string.

    Raises:
        NoListener: Nothing listens there. A call without a token could wait until a service does, which refuses it.
    """
    ports = [each.rpartition(":")[2] for each in each_address(address)]
    numbers = [int(port) for port in ports if port.isdigit()]
    # A replica that is not the leader listens on no port.
    owners = frozenset(owner for number in numbers for owner in listener_owners(number))
    if not owners and numbers and any(table.exists() for table in _LISTENERS):
        raise NoListener(f"nothing listens at {address}: start the service, or correct the address")
    return _token_in(path) if owners and owners <= {0, os.geteuid()} else ""


def _token_in(path: Path) -> str:
    """Returns the token in a file; empty if there is no such file, so that the service reports what is missing."""
    with contextlib.suppress(FileNotFoundError):
        return _checked(read_private_file(path), path)
    return ""


def listener_owners(port: int, tables: Iterable[Path] = _LISTENERS) -> frozenset[int]:
    """Returns the user ids of the sockets that listen on a TCP port of this machine, on any of its addresses.

    Args:
        port: The port.
        tables: Tables of the kernel's TCP sockets. A line has a number, the local address and port in hexadecimal, the
            remote address, the state, three columns of counters, and the user id.
    """
    owners = set()
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                owners.add(int(columns[7]))
    return frozenset(owners)
