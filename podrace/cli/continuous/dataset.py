"""The data that continuous training watches: looked at cheaply, and pinned as versions that nobody changes.

    source = open_source("prices/", environ=os.environ)
    signature = source.look()
    version = take_version(source, folder, cancelled=stop.is_set)

A version is named by a digest of names and content. It is a copy, made whole beside and renamed: a dataset that is
written while a tournament trains cannot reach the tournament.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from podrace.cli.continuous.decisions import Signature
from podrace.errors import (
    Aborted,
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unimplemented,
)

DIGEST_CHARACTERS = 12
"""Of a version's digest, in the names of folders and in texts."""
SCHEMES = ("s3", "minio", "minio+http")
"""Of references to servers."""
S3 = "s3://"
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that name the server of `s3://`, as those of Amazon's own tools."""
CHUNK_BYTES = 1 << 20
INCOMING = ".incoming"
"""Where a copy is made; what lies there is nobody's."""

Write = Callable[[bytes], object]


class Source(Protocol):
    """Data somewhere.

    for name in source.names(signature):
        source.read(name, write)
    """

    @property
    def name(self) -> str:
        """Of the file or folder that a version is kept as."""

    def look(self) -> Signature:
        """What is there at a glance; empty if there is nothing. The first of each row is a name, relative.

        Raises:
            PodraceError: It cannot be looked at.
        """

    def read(self, name: str, write: Write) -> None:
        """Reads an object piece by piece; the empty name is that of a source that is one file.

        Raises:
            NotFound: It is gone.
        """


@dataclass(frozen=True)
class Version:
    """A state of the data, pinned."""

    digest: str
    """SHA-256 over names and content."""
    path: Path
    """The file or folder that nobody changes."""


@dataclass(frozen=True)
class LocalSource:
    """A file or a folder of this machine; names that begin with a dot are left aside."""

    path: Path

    @property
    def name(self) -> str:
        """Its own."""
        return self.path.name

    def look(self) -> Signature:
        """Sizes, times and inodes; empty if it is missing."""
        try:
            if self.path.is_file():
                return (_row("", self.path),)
            return tuple(_row(name, self.path / name) for name in sorted(self._names()))
        except FileNotFoundError:
            # It is being replaced: the next look shows by what.
            return ()
        except OSError as error:
            raise FailedPrecondition(f"{self.path} cannot be looked at: {error.strerror}") from None

    def _names(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                if not name.startswith("."):
                    yield (Path(folder) / name).relative_to(self.path).as_posix()

    def read(self, name: str, write: Write) -> None:
        """Reads a file."""
        try:
            with (self.path / name if name else self.path).open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    write(data)
        except FileNotFoundError:
            raise NotFound(f"{self.path / name} is gone") from None


def _row(name: str, path: Path) -> tuple[object, ...]:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise FailedPrecondition(f"{path} is neither a file nor a folder")
    return name, found.st_size, found.st_mtime_ns, found.st_ino


def open_source(reference: str, environ: Mapping[str, str], *, patient: bool = True) -> Source:
    """Finds what a reference names; touches nothing.

    Args:
        reference: Path of a file or a folder, `s3://BUCKET/KEY-OR-PREFIX`, or `minio://HOST/BUCKET/KEY-OR-PREFIX`
            (`minio+http://` without TLS).
        environ: Where credentials, region, and for `s3://` the address of the server are.
        patient: Whether a server that fails is asked again for a while.

    Raises:
        InvalidArgument: It names nothing.
        FailedPrecondition: There are no credentials.
        Unimplemented: A package is missing.
    """
    scheme, separator, _ = reference.partition("://")
    if not separator:
        if not reference:
            raise InvalidArgument("--watch: name a file, a folder, or s3://BUCKET/KEY")
        return LocalSource(Path(reference).expanduser().absolute())
    if scheme == "file":
        return LocalSource(Path(reference.removeprefix("file://")))
    if scheme not in SCHEMES:
        raise InvalidArgument(
            f"--watch {reference}: unknown scheme {scheme!r}; write a path, or one of {', '.join(SCHEMES)}"
        )
    try:
        # Only here: it takes longer than most commands.
        from podrace.cli.continuous.bucket import BucketSource
    except ImportError:
        raise Unimplemented(
            f"--watch {reference}: needs the package minio: pip install 'minio>=7.2.20,<8' (podrace[minio])"
        ) from None
    return BucketSource.open(reference, environ, patient=patient)


def take_version(source: Source, folder: Path, *, cancelled: Callable[[], bool]) -> Version:
    """Copies what is there, and names it by its digest.

    Args:
        source: Of the data; what it shows must be the same before and after.
        folder: Of all versions of it; one that is there already is not made again.
        cancelled: Asked between pieces.

    Raises:
        Aborted: Somebody wrote meanwhile; look again.
        Cancelled: It was.
        NotFound: There is nothing.
        ResourceExhausted: The disk is full.
    """
    incoming = folder / INCOMING
    discard(incoming)
    try:
        before = source.look()
        if not before:
            raise NotFound(f"{source.name}: there is nothing")
        entries = [_copy(source, str(row[0]), incoming / source.name, cancelled) for row in before]
        if source.look() != before:
            raise Aborted(f"{source.name} was changed while it was read")
        return _keep(folder, incoming, source.name, _digest(entries))
    except NotFound as error:
        raise Aborted(f"{source.name} was changed while it was read: {error.message}") from None
    except OSError as error:
        raise ResourceExhausted(f"{folder}: the data cannot be copied: {error.strerror}") from None
    finally:
        discard(incoming)


def _copy(source: Source, name: str, target: Path, cancelled: Callable[[], bool]) -> tuple[str, str]:
    path = _inside(target, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = hashlib.sha256()
    with path.open("wb") as file:

        def write(data: bytes) -> None:
            if cancelled():
                raise Cancelled("stopped while data was copied")
            content.update(data)
            file.write(data)

        source.read(name, write)
        _settle(file)
    path.chmod(0o444)
    return name, content.hexdigest()


def _inside(target: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise FailedPrecondition(f"{name!r}: an object of this name cannot be kept as a file")
    return target.joinpath(*parts)


def _settle(file: BinaryIO) -> None:
    """Has the bytes on the disk before the version has its name, whatever happens to the machine."""
    file.flush()
    os.fsync(file.fileno())


def _digest(entries: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{content} {name}\n" for name, content in sorted(entries))
    return hashlib.sha256(lines.encode()).hexdigest()


def _keep(folder: Path, incoming: Path, name: str, digest: str) -> Version:
    place = folder_of(folder, digest)
    if not place.exists():
        incoming.replace(place)
    return Version(digest, place / name)


def folder_of(folder: Path, digest: str) -> Path:
    """Where a version lies, among all."""
    return folder / digest[:DIGEST_CHARACTERS]


def discard(place: Path) -> None:
    """Removes a version, or what is left of one."""
    if place.exists():
        # Beside first: a version that is there is whole.
        with contextlib.suppress(OSError):
            gone = place.with_name(f"{INCOMING}-gone")
            shutil.rmtree(gone, ignore_errors=True)
            place = place.rename(gone)
        shutil.rmtree(place, ignore_errors=True)
