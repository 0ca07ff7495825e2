"""Defines where the data of continuous training comes from, and reads files and folders of this machine."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from podrace.cli.continuous.decisions import Signature
from podrace.errors import FailedPrecondition, NotFound

S3 = "s3://"
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables with the address of the `s3://` server, as for the AWS command-line tools."""
CHUNK_BYTES = 1 << 20

Write = Callable[[bytes], object]


class Source(Protocol):
    """A dataset that can be watched and read.

    for name, *_ in source.signature():
        source.read(name, write)
    """

    @property
    def name(self) -> str:
        """Name of the file or folder in which a version is stored."""

    def signature(self) -> Signature:
        """Returns a cheap summary of the data, one row per object; empty if there is no data.

        The first item of a row is the name of the object, relative to the dataset.

        Raises:
            PodraceError: The data cannot be listed.
        """

    def read(self, name: str, write: Write) -> None:
        """Reads an object and passes it to `write` in chunks.

        Args:
            name: Name from the signature; empty if the dataset is a single file.
            write: Receives the chunks.

        Raises:
            NotFound: The object does not exist any more.
        """


@dataclass(frozen=True)
class LocalSource:
    """A file or a folder of this machine. Names that start with a dot are ignored."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        return self.path.name

    def signature(self) -> Signature:
        """Returns name, size, modification time and inode of each file; empty if the path does not exist.

        Raises:
            FailedPrecondition: The files cannot be read.
        """
        try:
            if self.path.is_file():
                return (_row("", self.path),)
            return tuple(_row(name, self.path / name) for name in sorted(self._names()))
        except FileNotFoundError:
            # A file is being replaced. The next call returns the new one.
            return ()
        except OSError as error:
            raise FailedPrecondition(f"{self.path} cannot be read: {error.strerror}") from None

    def _names(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                if not name.startswith("."):
                    yield (Path(folder) / name).relative_to(self.path).as_posix()

    def read(self, name: str, write: Write) -> None:
        """Reads a file in chunks.

        Raises:
            NotFound: The file does not exist any more.
        """
        try:
            with (self.path / name if name else self.path).open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    write(data)
        except FileNotFoundError:
            raise NotFound(f"{self.path / name} does not exist any more") from None


def _row(name: str, path: Path) -> tuple[object, ...]:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise FailedPrecondition(f"{path} is neither a file nor a folder")
    return name, found.st_size, found.st_mtime_ns, found.st_ino
