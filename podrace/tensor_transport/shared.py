"""Implements the plane `shared`: files in /dev/shm that the processes of one host map.

A file is named PREFIX + region. The prefix contains the pod and ends with a dash, and the name of a region has no dash.
So when the files of a dead pod are deleted, its prefix (`podrace-a-`) with a region's name never matches a file of
another pod (`podrace-a-b-`).
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
from podrace.ownership import foreign_file, share
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
    """Regions in files that peers on the same host map by name. See Plane for the methods."""

    scheme = "shared"
    copies = False

    def __init__(self, prefix: str, folder: Path = FOLDER, *, group: int = 0, pinned: bool = False) -> None:
        """Starts without regions.

        Args:
            prefix: Prefix of the name of every file created here; ends with a dash, for instance `podrace-POD-`.
            folder: Folder of the files; the same memory-backed folder for both ends.
            group: Group whose processes may open regions that are created here, if this is root; 0: only this user.
            pinned: Whether to register the memory with CUDA, for a process that copies it to or from a GPU.

        Raises:
            InvalidArgument: The prefix is malformed.
        """
        _check_prefix(prefix)
        self._prefix = prefix
        self._folder, self._group, self._pinned = folder, group, pinned
        self._regions: dict[str, Region] = {}
        self._mappings: dict[str, tuple[tuple[int, int], Tensor]] = {}

    def create(self, name: str, specs: Sequence[TensorSpec]) -> Region:
        """Allocates a sparse file for tensors; raises as Plane.create does."""
        check_name(name)
        _, size = place(specs)
        path = self._folder / f"{self._prefix}{name}"
        _check_room(self._folder, path.name, size)
        memory = _create_mapped(path, size, self._group, pinned=self._pinned)
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
        """Not needed: both ends share the memory."""

    async def push(self, refs: Sequence[TensorRef], boxes: Mapping[str, Sequence[Box]]) -> None:
        """Not needed: both ends share the memory."""

    def close(self) -> None:
        """Unlinks the files created here and drops all mappings."""
        for region in list(self._regions.values()):
            region.close()
        self._mappings.clear()

    def _mapping(self, plane_uri: str) -> Tensor:
        path = self._folder / _file_name(plane_uri)
        try:
            # A new owner may have replaced the mapped file by one with the same name, so the inodes are compared.
            status = path.stat(follow_symlinks=False)
            identity = (status.st_dev, status.st_ino)
            known = self._mappings.get(plane_uri)
            if known is None or known[0] != identity:
                known = _open_mapped(path, pinned=self._pinned)
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


def remove_regions(prefix: str, folder: Path = FOLDER, names: re.Pattern[str] = REGION_NAME) -> list[str]:
    """Removes the files of regions whose owner is dead, and returns their names.

    Args:
        prefix: As of SharedPlane; no living process may own regions with this prefix.
        folder: Folder of the files.
        names: Matches the names of the regions to remove.
    """
    _check_prefix(prefix)
    left = [
        path for path in folder.iterdir() if path.name.startswith(prefix) and names.fullmatch(path.name[len(prefix) :])
    ]
    for path in left:
        # A file that another user made stays.
        with suppress(PermissionError):
            path.unlink(missing_ok=True)
    return [path.name for path in left]


def _check_prefix(prefix: str) -> None:
    if not PREFIX.fullmatch(prefix):
        raise InvalidArgument(f"prefix {prefix!r} must consist of letters, digits, '_', '.' and '-', and end with '-'")


def _file_name(plane_uri: str) -> str:
    scheme, _, file_name = plane_uri.partition(":")
    if scheme != SharedPlane.scheme or not FILE_NAME.fullmatch(file_name):
        raise InvalidArgument(f"plane URI {plane_uri!r} must be '{SharedPlane.scheme}:' and a file name without '/'")
    return file_name


def _check_room(folder: Path, file_name: str, size: int, *, already_counted: bool = False) -> None:
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise FailedPrecondition(f"plane 'shared' needs the folder {folder}: {error.strerror}") from error
    # Sparse files overcommit, and a page that cannot be allocated later raises SIGBUS instead of an error. So the bytes
    # that existing files may still take are subtracted.
    free = status.f_bavail * status.f_frsize - _unallocated_bytes(folder) + (size if already_counted else 0)
    if status.f_blocks and size > free:
        raise ResourceExhausted(
            f"{folder} has {max(free, 0)} bytes free, region {file_name!r} needs {size}: make the slots smaller or the"
            " folder larger (docker --shm-size, Kubernetes emptyDir.sizeLimit)"
        )


def _unallocated_bytes(folder: Path) -> int:
    """Returns the bytes that all files of the folder may still take: their sizes minus their allocated blocks."""
    unallocated = 0
    for path in folder.iterdir():
        with suppress(OSError):  # its owner may remove it meanwhile
            file = path.lstat()
            unallocated += max(file.st_size - file.st_blocks * STAT_BLOCK_BYTES, 0) if stat.S_ISREG(file.st_mode) else 0
    return unallocated


def _create_mapped(path: Path, size: int, group: int, *, pinned: bool) -> Tensor:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(
            f"{path} exists already; remove the files of the dead pod, or close the region first"
        ) from error
    except OSError as error:
        raise FailedPrecondition(f"{path} cannot be created: {error.strerror}") from error
    try:
        os.ftruncate(descriptor, size)
        if group:
            share(descriptor, group, 0o660)
        # Checked again, because another pod may have created a file at the same moment. Both are refused then.
        _check_room(path.parent, path.name, size, already_counted=True)
        return mapped(descriptor, size, pinned=pinned)
    except ResourceExhausted:
        path.unlink()
        raise
    except OSError as error:
        path.unlink()
        raise ResourceExhausted(f"{path} cannot be made {size} bytes long: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _open_mapped(path: Path, *, pinned: bool) -> tuple[tuple[int, int], Tensor]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        # In /dev/shm any user can create a file under any name.
        if problem := foreign_file(status):
            raise FailedPrecondition(f"{path} {problem}; remove it, or start the pod under another name")
        if status.st_size < HEADER_BYTES:
            raise FailedPrecondition(
                f"{path} has {status.st_size} bytes, too few for a region; is it a file of podrace?"
            )
        return (status.st_dev, status.st_ino), mapped(descriptor, status.st_size, pinned=pinned)
    finally:
        os.close(descriptor)
