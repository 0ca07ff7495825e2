"""Appends records to a file and rotates it, even if several processes append to the same file."""

import fcntl
import os
import stat
from pathlib import Path

import structlog

from podrace.processes.log_rotation import rotated, shift

LEAST_BYTES = 65_536
LARGEST_BYTES = 1 << 40
MOST_KEPT_FILES = 1_000
_log = structlog.get_logger(__name__)


class AuditFile:
    """A file to which records are appended. No record is lost when it is rotated.

    file = AuditFile(Path("/var/log/podrace/audit.log"), most_bytes=64 << 20, kept_files=9)
    file.append(record)

    The file is renamed and a new one is made; a process that has the renamed file open notices it before its next
    record. The same holds if another program, such as logrotate, renames the file.
    """

    def __init__(self, path: Path, *, most_bytes: int = 0, kept_files: int = 1) -> None:
        """Opens the file, which only this user can read, or creates it.

        Args:
            path: The file.
            most_bytes: Size above which the file is rotated, before the record that would exceed it; 0: never.
            kept_files: Number of rotated files that are kept.

        Raises:
            OSError: It cannot be written.
        """
        self._path, self._kept_files = path, kept_files
        self._descriptor = _open(path)
        # A link such as /dev/stderr is not renamed.
        self._most_bytes = most_bytes if stat.S_ISREG(path.lstat().st_mode) else 0

    def append(self, record: bytes) -> None:
        """Appends a record, which ends with a line feed.

        Raises:
            OSError: It cannot be written.
        """
        size = self._size()
        if self._most_bytes and size and size + len(record) > self._most_bytes:
            self._rotate()
        # A single write to a file opened in append mode, so the records of several processes do not mix.
        os.write(self._descriptor, record)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _size(self) -> int:
        """Returns the size of the file, after opening it again if it was renamed or deleted."""
        if not self._is_current():
            self._open_again()
        return os.fstat(self._descriptor).st_size

    def _is_current(self) -> bool:
        own = os.fstat(self._descriptor)
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def _open_again(self) -> None:
        descriptor = _open(self._path)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def _rotate(self) -> None:
        """Renames the file unless another process has just done so, and opens a new one."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            if self._is_current():
                shift(self._path, self._kept_files)
                self._path.rename(rotated(self._path))
            # The lock is on the renamed file, and closing that releases it.
            self._open_again()
        except OSError as error:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._most_bytes = 0
            _log.error(
                "the audit log cannot be rotated; it grows until the service restarts",
                file=str(self._path),
                error=error.strerror,
            )


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
