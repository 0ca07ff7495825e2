"""Opens and rotates log files: `NAME.1` is the newest rotated file, `NAME.2` the one before.

There are two ways. The writer of a file may rename it and open a new one. Where several processes have inherited the
descriptor of a file, it is copied and emptied instead: all of them append, so their next lines are at its beginning.
A line that is written between the last read and the truncation, which are two consecutive system calls, is lost.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1 << 20
_NEW = ".new"


def open_log(path: Path) -> BinaryIO:
    """Opens a log to append to it, or creates it; others cannot read it.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    log = os.fdopen(os.open(path, flags, 0o600), "ab")
    status = os.fstat(log.fileno())
    # Logs of earlier versions were open to all users; what their group may do stays.
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO and status.st_uid == os.geteuid():
        os.fchmod(log.fileno(), stat.S_IMODE(status.st_mode) & ~stat.S_IRWXO)
    return log


def rotated(path: Path, number: int = 1) -> Path:
    """Returns the path of a rotated file; number 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def shift(path: Path, kept_files: int) -> None:
    """Renames the rotated files of a log, so that number 1 is free, and deletes those beyond `kept_files`.

    Raises:
        OSError: A file cannot be renamed or deleted.
    """
    beyond = kept_files
    while rotated(path, beyond).exists():
        rotated(path, beyond).unlink()
        beyond += 1
    for number in range(kept_files - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            rotated(path, number).rename(rotated(path, number + 1))


def copy_and_truncate(path: Path, kept_files: int) -> None:
    """Copies a log to its newest rotated file and empties it. Its writers must have opened it to append.

    A crash in between leaves the log as it was, or a log whose lines are in the rotated file too.

    Raises:
        OSError: The copy cannot be written, for instance because the disk is full; the log is unchanged.
    """
    new = path.with_name(path.name + _NEW)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(path, flags)
    try:
        copy = os.open(new, flags | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _copy(log, copy)
            shift(path, kept_files)
            new.rename(rotated(path))
            # What was written meanwhile; then nothing comes between the last read and the truncation.
            _copy(log, copy)
            os.ftruncate(log, 0)
        finally:
            os.close(copy)
            new.unlink(missing_ok=True)
    finally:
        os.close(log)


def _copy(source: int, target: int) -> None:
    """Copies from one descriptor to another until the end."""
    while block := os.read(source, BLOCK_BYTES):
        while block:
            block = block[os.write(target, block) :]
