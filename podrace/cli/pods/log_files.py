"""Finds and reads the logs of an embedded mesh: one file for each service and each pod."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from podrace.client.resolve import resolve_name
from podrace.errors import NotFound

SUFFIX = ".log"
BLOCK_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 20
"""A longer line is returned in pieces."""


def find_log(folder: Path, text: str) -> Path:
    """Returns the log that a user named.

    Args:
        folder: Folder of the logs.
        text: Id of a pod, a prefix of exactly one, or the name of a service.

    Raises:
        NotFound: No log matches; the message suggests a similar one.
        InvalidArgument: Several logs match.
    """
    newest = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not newest:
        raise NotFound(f"{folder}: there are no logs; start a tournament with `podrace train SPEC`")
    names = [path.name.removesuffix(SUFFIX) for path in newest]
    return folder / f"{resolve_name(text, names, 'log', where=str(folder))}{SUFFIX}"


def seek_last_lines(file: BinaryIO, lines: int) -> None:
    """Moves the position of a file to the beginning of its last lines; reads only as much of its end as is needed."""
    position, tail = file.seek(0, os.SEEK_END), b""
    while lines and position > 0:
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
    """Reads the complete lines of a file that is still written, and starts again if the file became shorter."""

    def __init__(self, file: BinaryIO) -> None:
        """Takes a file at the position of the first line."""
        self._file = file
        self._rest = b""

    def read(self) -> Iterator[str]:
        """Yields the lines that were completed since the last call."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        while block := self._file.read(BLOCK_BYTES):
            *complete, self._rest = (self._rest + block).split(b"\n")
            yield from (line.decode(errors="replace") for line in complete)
            if len(self._rest) > LONGEST_LINE_BYTES:
                yield self.unfinished()

    def unfinished(self) -> str:
        """Returns the beginning of a line whose end is not written yet, and continues after it."""
        text, self._rest = self._rest.decode(errors="replace"), b""
        return text


def last_lines(path: Path, lines: int) -> list[str]:
    """Returns the last lines of a file, an unfinished one included."""
    with path.open("rb") as file:
        seek_last_lines(file, lines)
        reader = GrowingLines(file)
        found = list(reader.read())
        rest = reader.unfinished()
    return [*found, rest] if rest else found
