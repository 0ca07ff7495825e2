"""Reads files that only this user may read, and creates them with random content at first use."""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from podrace.errors import FailedPrecondition


def read_private_file(path: Path) -> bytes:
    """Returns the content of a file that only this user can read.

    Raises:
        FileNotFoundError: There is no such file.
        FailedPrecondition: It cannot be read, or others can read it.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            mode = stat.S_IMODE(status.st_mode)
            # Files of a Kubernetes Secret belong to root, and this process may read them because it is in their group.
            others = 0o077 if status.st_uid == os.geteuid() else 0o037
            if mode & others:
                raise FailedPrecondition(
                    f"{path}: other users can read it (mode {mode:04o}); chmod 600 {path}, and remove the file if they"
                    " may have read it: it is made again"
                )
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FailedPrecondition(f"{path}: cannot be read: {error.strerror}") from None


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; a pipe that nothing writes to does not block."""
    return os.open(path, flags | os.O_NONBLOCK)


def make_private_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Returns the content of a private file, which is made first if it does not exist.

    Two processes that create it at the same time both get the content of the first one.

    Args:
        path: The file. Its folder is made as well, with access for this user only.
        make: Returns the content of a new file.

    Raises:
        FailedPrecondition: The file cannot be made or read, or others can read it.
    """
    with contextlib.suppress(FileNotFoundError):
        return read_private_file(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(make())
        try:
            # Fails if another process was faster.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
        return read_private_file(path)
    except OSError as error:
        raise FailedPrecondition(f"{path}: cannot be made: {error.strerror}; choose another file") from None
