"""Records the port on which a process of a pod serves its metrics, for the launcher that lists the pod."""

import contextlib
import os
import stat
from pathlib import Path

from podrace.processes.identity import Process

LONGEST_BYTES = 64


def port_file(folder: Path, role: str) -> Path:
    """Returns the file in which a role records its port."""
    return folder / f"{role}.metrics"


def record(folder: Path, role: str, address: str) -> None:
    """Records where this process serves its metrics. A file that cannot be written is left out: it is only for metrics.

    Args:
        folder: Folder of the role.
        role: The role.
        address: `host:port`; empty: it serves none.
    """
    path = port_file(folder, role)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        if address:
            path.write_text(f"{os.getpid()} {address.rpartition(':')[2]}\n")


def recorded(folder: Path, role: str, process: Process) -> int:
    """Returns the port that a process has recorded; 0 if it has recorded none.

    The folder may belong to a process with user code, so links, pipes and long files are not read.

    Args:
        folder: Folder of the role.
        role: The role.
        process: The process that has the role now. What an earlier one has recorded does not count.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(port_file(folder, role), flags)
    except OSError:
        return 0
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        words = os.read(descriptor, LONGEST_BYTES).split() if regular else []
    finally:
        os.close(descriptor)
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[0]) != process.pid:
        return 0
    port = int(words[1])
    return port if port < 65536 else 0
