"""Checks that folders, sockets, pipes and shared memory belong to this user, so that no other user can replace them.

On a machine with several users anyone can create a file in /tmp or /dev/shm under a name that is known beforehand.
What already exists there is therefore examined before it is used: its kind, its owner and its mode, without following a
symbolic link.
"""

import os
import stat
from pathlib import Path

from podrace.errors import FailedPrecondition

ENTER = 0o077
"""Mode bits with which other users can enter a folder or open a file."""
WRITE = 0o022
"""Mode bits with which other users can write."""


def make_private_folder(folder: Path, remedy: str, *, key: str = "") -> None:
    """Creates a folder that only this user can enter, or checks that an existing one is such a folder.

    Args:
        folder: The folder. Folders above it are created as well.
        remedy: What to do if the folder cannot be used, for instance "set TMPDIR to another folder".
        key: The configuration key that names the folder, for the message.

    Raises:
        FailedPrecondition: The folder cannot be created, belongs to another user, is a symbolic link, or others can
            enter it.
    """
    label = _label(folder, key)
    _make(folder, 0o700, label, remedy)
    _check(folder, ENTER, label, remedy)


def make_own_folder(folder: Path, remedy: str, *, key: str = "", mode: int = 0o755) -> None:
    """Creates a folder that only this user can write to, or checks that an existing one is such a folder.

    Args:
        folder: The folder. Folders above it are created as well.
        remedy: What to do if the folder cannot be used.
        key: The configuration key that names the folder, for the message.
        mode: Mode of a new folder.

    Raises:
        FailedPrecondition: The folder cannot be created or written to, belongs to another user, is a symbolic link, or
            others can write to it.
    """
    label = _label(folder, key)
    _make(folder, mode, label, remedy)
    _check(folder, WRITE, label, remedy)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FailedPrecondition(f"{label} cannot be written to; {remedy}")


def check_link(path: Path, remedy: str) -> None:
    """Checks that a path is not a symbolic link that another user made. Links of this user and of root are followed.

    Raises:
        FailedPrecondition: The link belongs to another user.
    """
    try:
        found = path.lstat()
    except OSError:
        return
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
        raise FailedPrecondition(f"{path} is a symbolic link of another user ({found.st_uid}); {remedy}")


def check_socket(address: str, owner: int | None = None) -> None:
    """Checks that a Unix socket belongs to a user, before a service is called there.

    Addresses of a network pass, and so does a socket that does not exist yet in a folder of this user or of root.

    Args:
        address: `host:port` or `unix:/path`.
        owner: The user that must have made socket and folder; None: this user.

    Raises:
        FailedPrecondition: The socket or its folder belongs to another user, who could answer there.
    """
    if not address.startswith("unix:"):
        return
    path = Path(address.removeprefix("unix:").removeprefix("//"))
    expected = os.geteuid() if owner is None else owner
    try:
        folder = path.parent.stat()
        found, what = folder.st_uid, path.parent
        if found in (expected, 0):
            found, what = path.lstat().st_uid, path
    except OSError:
        return
    if found != expected:
        raise FailedPrecondition(
            f"{address}: {what} belongs to another user ({found}), who could answer there; call another address, or"
            " call as that user"
        )


def is_own_pipe(descriptor: int) -> bool:
    """Whether an open file is a named pipe of this user, or one that root made for the group of this process."""
    found = os.fstat(descriptor)
    return stat.S_ISFIFO(found.st_mode) and (found.st_uid == os.geteuid() or _is_shared_by_root(found))


def foreign_file(found: os.stat_result) -> str:
    """Returns why a file is not one that this user made for itself alone, to be read after its name; empty: it is.

    A file that root made for the group of this process is accepted as well.
    """
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if _is_shared_by_root(found):
        return ""
    return _problem(found, ENTER)


def share(path: Path | int, group: int, mode: int) -> None:
    """Gives a file or a folder of this user to a group, with a mode that lets no one else in."""
    os.chown(path, -1, group)
    os.fchmod(path, mode) if isinstance(path, int) else path.chmod(mode)


def _is_shared_by_root(found: os.stat_result) -> bool:
    """Whether root has given a file to the group of this process, and to no one else."""
    return (found.st_uid, found.st_gid) == (0, os.getegid()) and not stat.S_IMODE(found.st_mode) & 0o007


def _label(folder: Path, key: str) -> str:
    return f"{key} = {str(folder)!r}:" if key else str(folder)


def _make(folder: Path, mode: int, label: str, remedy: str) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except FileExistsError:
        # A link to nowhere, or a file: the check names it.
        return
    except OSError as error:
        raise FailedPrecondition(f"{label} cannot be created: {error.strerror}; {remedy}") from None


def _check(folder: Path, forbidden: int, label: str, remedy: str) -> None:
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise FailedPrecondition(f"{label} is a symbolic link; {remedy}")
    if not stat.S_ISDIR(found.st_mode):
        raise FailedPrecondition(f"{label} is not a folder; {remedy}")
    if problem := _problem(found, forbidden):
        fix = f"chmod {'700' if forbidden == ENTER else 'go-w'} {folder}, or " if found.st_uid == os.geteuid() else ""
        raise FailedPrecondition(f"{label} {problem}; {fix}{remedy}")


def _problem(found: os.stat_result, forbidden: int) -> str:
    if found.st_uid != os.geteuid():
        return f"belongs to another user ({found.st_uid})"
    mode = stat.S_IMODE(found.st_mode)
    if mode & forbidden:
        return f"is open to other users (mode {mode:04o})"
    return ""
