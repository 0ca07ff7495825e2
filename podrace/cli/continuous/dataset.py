"""Copies the watched data as versions that never change.

    source = open_source("prices/", environ=os.environ)
    version = take_version(source, folder, cancelled=stop.is_set)

A version is a copy that is named after the digest of its file names and contents, and that becomes visible atomically.
Writing to the dataset during a tournament does not affect the version that the tournament trains on.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from podrace.cli.continuous.source import LocalSource, Source
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
"""Length of version digests in folder names and messages."""
SCHEMES = ("s3", "minio", "minio+http")
"""URI schemes of data on servers."""
INCOMING = ".incoming"
"""Folder for incomplete copies, which may be deleted at any time."""


@dataclass(frozen=True)
class DatasetVersion:
    """A copy of the data at one time."""

    digest: str
    """SHA-256 of file names and contents."""
    path: Path
    """The copied file or folder, which is read-only."""


def open_source(reference: str, environ: Mapping[str, str], *, retry: bool = True) -> Source:
    """Returns the source that a reference names, without reading it.

    Args:
        reference: Path of a file or a folder, `s3://BUCKET/KEY-OR-PREFIX`, or `minio://HOST/BUCKET/KEY-OR-PREFIX`
            (`minio+http://` without TLS).
        environ: Environment variables with credentials, region, and for `s3://` the address of the server.
        retry: Whether calls to a server that fails are retried for some time.

    Raises:
        InvalidArgument: The reference is malformed.
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
        # Imported late, because it takes longer than most commands.
        from podrace.cli.continuous.bucket import BucketSource
    except ImportError:
        raise Unimplemented(
            f"--watch {reference}: needs the package minio: pip install 'minio>=7.2.20,<8' (podrace[minio])"
        ) from None
    return BucketSource.open(reference, environ, retry=retry)


def take_version(source: Source, folder: Path, *, cancelled: Callable[[], bool]) -> DatasetVersion:
    """Copies the data and returns the copy as a version.

    Args:
        source: The data, which must not change while it is copied.
        folder: Folder of all versions. A version that exists already is not stored again.
        cancelled: Called between chunks; returns whether to give up.

    Raises:
        Aborted: The data changed while it was copied, or there is none; try again later.
        Cancelled: `cancelled` returned True.
        ResourceExhausted: The copy cannot be written, for instance because the disk is full.
    """
    incoming = folder / INCOMING
    discard(incoming)
    try:
        before = source.signature()
        if not before:
            raise NotFound(f"{source.name}: there is no data")
        entries = [_copy(source, str(row[0]), incoming / source.name, cancelled) for row in before]
        if source.signature() != before:
            raise Aborted(f"{source.name} was changed while it was read")
        return _train(folder, incoming, source.name, _digest(entries))
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
                raise Cancelled("stopped while the data was copied")
            content.update(data)
            file.write(data)

        source.read(name, write)
        _flush_to_disk(file)
    path.chmod(0o444)
    return name, content.hexdigest()


def _inside(target: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise FailedPrecondition(f"{name!r}: an object with this name cannot be stored as a file")
    return target.joinpath(*parts)


def _flush_to_disk(file: BinaryIO) -> None:
    """Writes the file to the disk, so that a visible version is complete even after a power failure."""
    file.flush()
    os.fsync(file.fileno())


def _digest(entries: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{content} {name}\n" for name, content in sorted(entries))
    return hashlib.sha256(lines.encode()).hexdigest()


def _train(folder: Path, incoming: Path, name: str, digest: str) -> DatasetVersion:
    place = folder_of(folder, digest)
    if not place.exists():
        incoming.replace(place)
    return DatasetVersion(digest, place / name)


def folder_of(folder: Path, digest: str) -> Path:
    """Returns the folder of a version."""
    return folder / digest[:DIGEST_CHARACTERS]


def discard(place: Path) -> None:
    """Deletes a version or an incomplete copy."""
    if place.exists():
        # Renamed first, because a visible version must be complete.
        with contextlib.suppress(OSError):
            discarded = place.with_name(f"{INCOMING}-gone")
            shutil.rmtree(discarded, ignore_errors=True)
            place = place.rename(discarded)
        shutil.rmtree(place, ignore_errors=True)
