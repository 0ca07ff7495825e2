"""Identifies callers of a Unix socket: the folder of the socket lets only this user in, so every caller is this user.

gRPC does not show the user id of a caller to Python. The service therefore refuses to bind a socket in a folder that
others can enter (`check_folder`).
"""

import os
import pwd
import stat
from pathlib import Path

from podrace.access.credentials import Credentials
from podrace.access.principal import ALL_ROLES, Principal
from podrace.errors import FailedPrecondition, InvalidArgument

PREFIX = "unix:"


class UnixSocketAuthenticator:
    """Gives every caller of a Unix socket all roles, unless it presents a token; see Authenticator.

    A caller that presents a token has the roles of that token: this is how a user gives a program fewer roles.
    """

    def __init__(self) -> None:
        self._user = local_user()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns this user for a call over a Unix socket without a token."""
        return self._user if credentials.peer.startswith(PREFIX) and not credentials.token else None


def local_user() -> Principal:
    """Returns the user of this process, who has all roles."""
    return Principal(user_name(), ALL_ROLES, via="unix")


def user_name() -> str:
    """Returns the name of the user of this process, or its number if it has no name, as in some containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


def check_folder(address: str) -> None:
    """Checks that only this user can enter the folder of a Unix socket. Network addresses are not checked.

    Raises:
        InvalidArgument: The socket has no file, so every process of this machine could open it.
        FailedPrecondition: Others can enter the folder.
    """
    if address.startswith(("unix-abstract:", "vsock:")):
        raise InvalidArgument(f"{address}: expected host:port or unix:/path; every process could open this socket")
    if not address.startswith(PREFIX):
        return
    folder = Path(address.removeprefix(PREFIX).removeprefix("//")).parent.resolve()
    if not folder.is_dir():
        # The folder does not exist or cannot be read: binding the socket fails, and its error reports why.
        return
    if not any(_is_private(each) for each in (folder, *folder.parents)):
        found = folder.stat()
        raise FailedPrecondition(
            f"{address}: other users can enter the folder (mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid})"
            " and could call this service as you; choose a folder of your own with mode 0700"
        )


def _is_private(folder: Path) -> bool:
    """Whether only this user can enter a folder, so that no other user reaches what is below it."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
