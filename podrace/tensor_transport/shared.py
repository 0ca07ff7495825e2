"""Owns the plane `shared`: files of /dev/shm that the processes of one host map; the owner's pod names them.

A file is called PREFIX + region. The prefix ends with a dash and a region's name has none, so that one pod's prefix
(`podrace-a-`) never matches the files of another (`podrace-a-b-`) when what a dead pod left is swept away.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from torch import Tensor

from podrace.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ResourceExhausted
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.boxes import Box
from podrace.tensor_transport.layout import (
    HEADER_BYTES,
    REGION_NAME,
    check_header,
    check_name,
    mapped,
    open_tensors,
    place,
    write_header,
)
from podrace.tensor_transport.plane import Region

FOLDER = Path("/dev/shm")
PREFIX = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.]*-)+")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
STAT_BLOCK_BYTES = 512


class SharedPlane:
    """Regions in files that peers of the same host map by name. See Plane for the verbs."""

    scheme = "shared"

    def __init__(self, prefix: str, folder: Path = FOLDER) -> None:
        """Begins without regions.

        Args:
            prefix: Begins the name of every file created here and ends with a dash, for instance `podrace-POD-`.
            folder: Where the files lie; the same memory-backed folder for both ends.

        Raises:
            InvalidArgument: The prefix is malformed.
        """
        _check_prefix(prefix)
        self._prefix = prefix
        self._folder = folder
        self._regions: dict[str, Region] = {}
        self._mappings: dict[str, tuple[tuple[int, int], Tensor]] = {}

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates a sparse file for some tensors; raises as Plane.create does."""
        check_name(name)
        _, size = place(specs)
        path = self._folder / f"{self._prefix}{name}"
        _check_room(self._folder, path.name, size)
        memory = _create_mapped(path, size)
        write_header(memory)
        plane_uri = f"{self.scheme}:{path.name}"
        self._regions[plane_uri] = Region(plane_uri, memory, specs, partial(self._release, plane_uri, path))
        return self._regions[plane_uri]

    def open(self, refs: Sequence[TensorRef]) -> dict[str, Tensor]:
        """Views the tensors in place; raises as Plane.open does."""
        return open_tensors(refs, self._mapping)

    def forget(self, plane_uri: str) -> None:
        """Drops the mapping of a region; it is unmapped when no view is left."""
        self._mappings.pop(plane_uri, None)

    def block(self, plane_uri: str) -> Tensor:
        """Views a whole region, header included, uint8 [size]; raises FailedPrecondition as `open` does."""
        return self._mapping(plane_uri)

    async def pull(self, refs: Sequence[TensorRef]) -> None:
        """Does nothing: both ends see one memory."""

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Box]) -> None:
        """Does nothing: both ends see one memory."""

    def close(self) -> None:
        """Unlinks the files created here and drops all mappings."""
        for region in list(self._regions.values()):
            region.close()
        self._mappings.clear()

    def _mapping(self, plane_uri: str) -> Tensor:
        path = self._folder / _file_name(plane_uri)
        try:
            # A file of the same name may have replaced the mapped one (its owner died and came back): compare inodes.
            status = path.stat(follow_symlinks=False)
            identity = (status.st_dev, status.st_ino)
            known = self._mappings.get(plane_uri)
            if known is None or known[0] != identity:
                known = _open_mapped(path)
                check_header(known[1], plane_uri)
                self._mappings[plane_uri] = known
        except OSError as error:
            self.forget(plane_uri)
            raise FailedPrecondition(
                f"{plane_uri} cannot be mapped from {path}: {error.strerror}; its owner closed it, or the two ends do"
                " not share this folder"
            ) from error
        return known[1]

    def _release(self, plane_uri: str, path: Path) -> None:
        del self._regions[plane_uri]
        path.unlink(missing_ok=True)


def sweep(prefix: str, folder: Path = FOLDER, names: re.Pattern[str] = REGION_NAME) -> list[str]:
    """Removes the regions that dead processes left behind, and returns the names of their files.

    Args:
        prefix: As of SharedPlane; whoever still lives must not own regions with it.
        folder: Where the files lie.
        names: What the names of the regions are like.
    """
    _check_prefix(prefix)
    left = [
        path for path in folder.iterdir() if path.name.startswith(prefix) and names.fullmatch(path.name[len(prefix) :])
    ]
    for path in left:
        path.unlink(missing_ok=True)
    return [path.name for path in left]


def _check_prefix(prefix: str) -> None:
    if not PREFIX.fullmatch(prefix):
        raise InvalidArgument(f"prefix {prefix!r} must be made of letters, digits, '_', '.' and '-', and end with '-'")


def _file_name(plane_uri: str) -> str:
    scheme, _, file_name = plane_uri.partition(":")
    if scheme != SharedPlane.scheme or not FILE_NAME.fullmatch(file_name):
        raise InvalidArgument(f"plane URI {plane_uri!r} must be '{SharedPlane.scheme}:' and a file name without '/'")
    return file_name


def _check_room(folder: Path, file_name: str, size: int, *, promised_already: bool = False) -> None:
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise FailedPrecondition(f"plane 'shared' needs the folder {folder}: {error.strerror}") from error
    # Sparse files overcommit, and a page that cannot be had later is SIGBUS, not an error: count what was promised.
    free = status.f_bavail * status.f_frsize - _promised_bytes(folder) + (size if promised_already else 0)
    if status.f_blocks and size > free:
        raise ResourceExhausted(
            f"{folder} has {max(free, 0)} bytes free, region {file_name!r} needs {size}: make the slots smaller or the"
            " folder larger (docker --shm-size, Kubernetes emptyDir.sizeLimit)"
        )


def _promised_bytes(folder: Path) -> int:
    """What files of the folder have not taken of their size yet: ours, those of other pods, and anybody else's."""
    promised = 0
    for path in folder.iterdir():
        with suppress(OSError):  # whoever made it may remove it meanwhile
            file = path.lstat()
            promised += max(file.st_size - file.st_blocks * STAT_BLOCK_BYTES, 0) if stat.S_ISREG(file.st_mode) else 0
    return promised


def _create_mapped(path: Path, size: int) -> Tensor:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} is there already; sweep what a dead pod left, or close it first") from error
    except OSError as error:
        raise FailedPrecondition(f"{path} cannot be created: {error.strerror}") from error
    try:
        os.ftruncate(descriptor, size)
        # Again: another pod may have promised the same room at this moment. Both are refused rather than neither.
        _check_room(path.parent, path.name, size, promised_already=True)
        return mapped(descriptor, size)
    except ResourceExhausted:
        path.unlink()
        raise
    except OSError as error:
        path.unlink()
        raise ResourceExhausted(f"{path} cannot be made {size} bytes long: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _open_mapped(path: Path) -> tuple[tuple[int, int], Tensor]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_size < HEADER_BYTES:
            raise FailedPrecondition(f"{path} has {status.st_size} bytes, too few for a region; is it our file?")
        return (status.st_dev, status.st_ino), mapped(descriptor, status.st_size)
    finally:
        os.close(descriptor)
