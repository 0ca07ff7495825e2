"""Opens the files of data that a specification names: below a data root, or from an allowed URL.

A path is resolved, must stay below the folder of its root, and is then opened one component at a time without following
links. So neither a link nor one that is created in between leads out of the folder.
"""

import os
import stat
from pathlib import Path
from typing import IO

from podrace.errors import InvalidArgument
from podrace.limits.config import Allowed
from podrace.limits.fetching import fetch
from podrace.limits.names import data_problem, root_of
from podrace.limits.urls import is_url

KERNEL_FILESYSTEMS = frozenset(
    ("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf")
)


def open_data(name: str, allowed: Allowed) -> IO[bytes]:
    """Opens what a specification names as data, for reading.

    Args:
        name: `ROOT:PATH`, a URL, or with `allow.everything` any path.
        allowed: What the operator allows.

    Raises:
        InvalidArgument: The name is not allowed, or there is no such file.
        PodraceError: As `fetch`, for a URL.
    """
    if problem := data_problem(name, allowed):
        raise InvalidArgument(f"{name!r}: {problem}")
    if is_url(name):
        return fetch(name, allowed)
    try:
        if root_of(name, allowed):
            return os.fdopen(_open_below(*located(name, allowed)), "rb")
        return Path(name).expanduser().open("rb")
    except (OSError, ValueError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or "it is not a path"
        raise InvalidArgument(f"{name} cannot be read: {reason}") from None


def located(name: str, allowed: Allowed) -> tuple[Path, Path]:
    """Returns the resolved folder of a data root, and the resolved path of `ROOT:PATH` below it.

    Raises:
        InvalidArgument: A link leads out of the folder.
    """
    folder = Path(allowed.data_roots[root_of(name, allowed)]).resolve()
    path = (folder / name.partition(":")[2]).resolve()
    if path == folder or not path.is_relative_to(folder):
        raise InvalidArgument(f"{name!r}: leads out of the folder of its data root")
    return folder, path


def path_of(name: str, allowed: Allowed) -> Path:
    """Returns the path of a file below a data root, for a library that opens it itself.

    Raises:
        InvalidArgument: It is not a regular file below the folder.
    """
    with open_data(name, allowed):
        return located(name, allowed)[1]


def version_of(name: str, allowed: Allowed) -> tuple[int, ...]:
    """Returns a value that changes when a file is written or replaced; constant if it is not a file."""
    try:
        path = located(name, allowed)[1] if root_of(name, allowed) else Path(name).expanduser()
        status = path.stat()
    except (OSError, ValueError, RuntimeError, InvalidArgument):
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _open_below(folder: Path, path: Path) -> int:
    """Opens a regular file below a folder without following links; raises OSError."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, file = path.relative_to(folder).parts
    try:
        for each in folders:
            inner = os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        # A named pipe would block without O_NONBLOCK.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or _filesystem(status.st_dev) in KERNEL_FILESYSTEMS:
        os.close(descriptor)
        raise OSError(0, "it is not a file of data")
    return descriptor


def _filesystem(device: int) -> str:
    """Returns the type of the mounted file system with a device number; empty if it is not known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for fields in map(str.split, lines):
        if fields[2] == number:
            return fields[fields.index("-") + 1]
    return ""
