"""Makes the tokens for services at addresses that a specification names.

Such a service never gets a token that the mesh accepts: it could call the mesh with it. It gets a token whose audience
is its own address. The operator names a file with this token. For a simulator service on this machine, the caller signs
the token with the key of its user.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from podrace.access.authenticators.unix_socket import user_name
from podrace.access.credentials import TokenSource
from podrace.access.mesh_key import MeshKey
from podrace.access.private_file import read_private_file
from podrace.access.sending import LOOPBACK_NAMES, is_loopback, may_send_token
from podrace.access.token_file import MESH_KEY, token_path
from podrace.access.tokens import claims_of
from podrace.access.v1 import access_pb2
from podrace.errors import FailedPrecondition

SCHEME = "grpc://"
TOKEN_SECONDS = 300.0
"""Lifetime of a token that is signed for one call."""
LOOPBACK = ("127.0.0.1", "[::1]", LOOPBACK_NAMES[0])


def audiences_of(address: str) -> list[str]:
    """Returns the audiences of tokens for a service at `host:port` or `unix:/path`: all names of this address."""
    host, _, port = address.rpartition(":")
    hosts = LOOPBACK if is_loopback(address) else (host,)
    return [f"{SCHEME}{address}"] if address.startswith("unix:") else [f"{SCHEME}{each}:{port}" for each in hosts]


def named_token(target: str, files: Mapping[str, str]) -> TokenSource | None:
    """Returns the source of the token for a service; None if there is none, or if it would be sent unencrypted.

    Args:
        target: `host:port` or `unix:/path`.
        files: Files with tokens by address, from the operator.
    """
    file = files.get(target)
    return (lambda: _token_in(Path(file))) if file and may_send_token(target) else None


def signed_token(target: str) -> TokenSource | None:
    """Returns the source of tokens for a service on a port of this machine; None elsewhere, or if there is no key."""
    if not is_loopback(target):
        return None
    path = token_path().with_name(MESH_KEY)
    return (lambda: own_token(MeshKey.load_or_make(path), target)) if path.exists() else None


def own_token(key: MeshKey, target: str, now: float | None = None) -> str:
    """Returns a token for one service, signed with the key of this user."""
    expire_time = (time.time() if now is None else now) + TOKEN_SECONDS
    return key.sign(
        claims_of(user_name(), {access_pb2.ROLE_USER}, expire_time=expire_time, audience=f"{SCHEME}{target}")
    )


def _token_in(path: Path) -> str:
    try:
        return read_private_file(path).decode(errors="replace").strip()
    except FileNotFoundError:
        raise FailedPrecondition(f"{path}: no such file, but allow.service_tokens names it") from None
