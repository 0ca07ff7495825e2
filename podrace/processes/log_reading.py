"""Reads log files that are written meanwhile: their last lines, and the lines that follow over rotations."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from podrace.processes.log_rotation import rotated

SUFFIX = ".log"
BLOCK_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 20
"""A longer line is returned in pieces."""


def seek_last_lines(file: BinaryIO, lines: int, most_bytes: int = sys.maxsize) -> None:
    """Moves the position of a file to the beginning of its last lines; reads only as much of its end as is needed.

    Args:
        file: The open file.
        lines: Number of lines.
        most_bytes: About how many bytes at the end are read; in a file with longer lines the position is within a line.
    """
    end = position = file.seek(0, os.SEEK_END)
    tail = b""
    while lines and position > 0 and end - position < most_bytes:
        begin = max(0, position - BLOCK_BYTES)
        file.seek(begin)
        tail, position = file.read(position - begin) + tail, begin
        # A line feed at the end closes the last line and begins none.
        before, *last = tail[:-1].rsplit(b"\n", lines)
        if len(last) == lines:
            file.seek(position + len(before) + 1)
            return
    file.seek(position)


class GrowingLines:
    """Reads the complete lines of a file that is still written, and continues when the file is rotated.

    If the file became shorter without being rotated, it is read from its beginning.
    """

    def __init__(self, file: BinaryIO, path: Path | None = None) -> None:
        """Takes a file at the position of the first line.

        Args:
            file: The open file.
            path: Its path, from which the path of the rotated file follows; None: it is not rotated.
        """
        self._file = file
        self._rotated = rotated(path) if path else None
        self._known = self._rotated_status()
        self._rest = b""

    def read(self) -> Iterator[str]:
        """Yields the lines that were completed since the last call."""
        size, status = os.fstat(self._file.fileno()).st_size, self._rotated_status()
        new = status and (self._known is None or self._known.st_ino != status.st_ino)
        # The file is emptied after the copy has been completed.
        if self._rotated and status and new and size < status.st_size:
            self._known = status
            yield from self._end_of(self._rotated)
            self._file.seek(0)
        elif size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        yield from self._lines_of(self._file)

    def _rotated_status(self) -> os.stat_result | None:
        try:
            return self._rotated.stat() if self._rotated else None
        except FileNotFoundError:
            return None

    def _end_of(self, copy: Path) -> Iterator[str]:
        """Yields the lines that were not read before the file was rotated."""
        with contextlib.suppress(FileNotFoundError), copy.open("rb") as file:
            file.seek(self._file.tell())
            yield from self._lines_of(file)

    def _lines_of(self, file: BinaryIO) -> Iterator[str]:
        while block := file.read(BLOCK_BYTES):
            *complete, self._rest = (self._rest + block).split(b"\n")
            yield from (line.decode(errors="replace") for line in complete)
            if len(self._rest) > LONGEST_LINE_BYTES:
                yield self.unfinished()

    def unfinished(self) -> str:
        """Returns the beginning of a line whose end is not written yet, and continues after it."""
        text, self._rest = self._rest.decode(errors="replace"), b""
        return text


def last_lines(path: Path, lines: int) -> list[str]:
    """Returns the last lines of a log, an unfinished one included; if it was rotated lately, also of the file before.

    Raises:
        FileNotFoundError: There is no such log.
    """
    found = _last_lines_of(path, lines)
    if len(found) < lines:
        with contextlib.suppress(FileNotFoundError):
            found = [*_last_lines_of(rotated(path), lines - len(found)), *found]
    return found


def _last_lines_of(path: Path, lines: int) -> list[str]:
    with path.open("rb") as file:
        seek_last_lines(file, lines)
        reader = GrowingLines(file)
        found = list(reader.read())
        rest = reader.unfinished()
    return [*found, rest] if rest else found
