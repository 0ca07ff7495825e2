"""Stores checkpoints in a folder that all pods of one machine or shared file system can access (the store `folder`).

    tournaments/TOURNAMENT/objects/ab/abcdef...
                             immutable objects of one tournament, named by their SHA-256; their modification time is
                             when they were last put
    objects/ab/abcdef...     objects of podrace 0.1.0, and of checks
    pointers/AGENT.json      one per agent
    incoming/                files being written, each locked (flock) by its writer
    lock                     held (flock) while a pointer is swapped and while an object is added or deleted

A file is renamed to its name after its bytes are on disk. A process that is killed at any point leaves whole files, and
perhaps one in incoming/, which no writer locks. It is removed a minute later, when a process opens the store or the
leaderboard collects garbage.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.arrival import Arrival, receive
from podrace.checkpoint_store.manifest import canonical_json, pointer_from_bytes
from podrace.checkpoint_store.store import (
    AGENT_ID,
    DIGEST,
    SHARED,
    TOURNAMENT_ID,
    StoredObject,
    check_agent_id,
    check_digest,
    check_size,
    check_tournament_id,
    readable_folders,
    verified,
)
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, FailedPrecondition, ResourceExhausted, Unavailable, missing_object

INCOMING_LIFE_SECONDS = 60.0
"""Younger files are kept even if nothing locks them: their writer may be about to, or belong to podrace 0.1.0."""
FULL = {ENOSPC, EDQUOT, EFBIG}


def is_store(folder: Path) -> bool:
    """Whether a folder has a checkpoint store, also one of podrace 0.1.0; raises OSError if it cannot be read."""
    return (folder / "objects").is_dir() and (folder / "pointers").is_dir()


class FolderStore:
    """Stores checkpoints in a folder. See CheckpointStore for the methods and their errors."""

    def __init__(self, folder: Path, clock: Callable[[], float] | None = None) -> None:
        """Creates the folder if it does not exist and removes incomplete files of killed writers.

        A store that exists is opened without a write, because its file system may be read-only for now.

        Args:
            folder: Folder of the checkpoints.
            clock: Returns seconds since the epoch, by which the age of objects is measured. None: the clock of the file
                system, because machines that share the folder may have different clocks.

        Raises:
            FailedPrecondition: The folder cannot be read, or does not exist and cannot be created.
            ResourceExhausted: It cannot be created, because the disk is full.
        """
        self._folder = folder.absolute()
        self._tournaments = self._folder / "tournaments"
        self._tournament_id, self._readable = SHARED, readable_folders(SHARED, ())
        self._pointers = self._folder / "pointers"
        self._incoming = self._folder / "incoming"
        self._clock, self._usable = clock, False
        with self._translated_errors():
            if not self._exists():
                self._create()
        # What is wrong with a store that exists is reported by the first call that writes.
        with suppress(OSError):
            self._remove_abandoned()

    def _exists(self) -> bool:
        """Whether an earlier process has created the store."""
        folders = (self._objects(SHARED), self._tournaments, self._pointers, self._incoming)
        return all(folder.is_dir() for folder in folders) and (self._folder / "lock").exists()

    def _create(self) -> None:
        # Others get no access to a new folder. An operator may have given it to a folder that exists.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._objects(SHARED), self._tournaments, self._pointers, self._incoming):
            folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "lock").touch()

    @property
    def uri(self) -> str:
        """The URI of the folder."""
        return f"folder://{self._folder}"

    @property
    def concurrency(self) -> int:
        """One: several writers do not make a disk faster."""
        return 1

    def mark_usable(self) -> None:
        """See UncheckedStore; views that are made later know it too."""
        self._usable = True

    def within(self, tournament_id: str, *also_read: str) -> "FolderStore":
        """Returns a view of one tournament."""
        view = copy(self)
        view._tournament_id, view._readable = tournament_id, readable_folders(tournament_id, also_read)
        return view

    def announce(self, sizes: Mapping[str, int]) -> None:
        """Needs no permission."""

    def put_object(self, data: bytes, name: str = "") -> str:
        """Writes an object to incoming/ and renames it; an equal object that exists is replaced."""
        name = name or digest(data)
        path = self._object_path(self._tournament_id, name)
        with self._translated_errors():
            _make_durable_folder(path.parent)
            with _written(self._incoming, data) as incoming:
                if self._clock:
                    now = self._clock()
                    os.utime(incoming, (now, now))
                with self._locked():
                    incoming.replace(path)
            _flush_folder(path.parent)
        return name

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        """Reads an object and verifies it."""
        check_digest(name)
        with self._translated_errors():
            for tournament_id in self._searched():
                with suppress(FileNotFoundError):
                    return verified(name, _read(self._object_path(tournament_id, name), largest_bytes), self.uri)
        raise missing_object(name, self.uri)

    def has_object(self, name: str) -> bool:
        """Looks for the file."""
        with self._translated_errors():
            return self._object_path(self._tournament_id, name).is_file()

    def list_objects(self) -> Iterator[StoredObject]:
        """Lists the objects."""
        with self._translated_errors():
            now = self._now()
            for tournament_id in [self._tournament_id] if self._tournament_id else [*self._searched()]:
                for shelf in _entries(self._objects(tournament_id)):
                    for entry in _entries(shelf.path):
                        with suppress(FileNotFoundError):
                            status = entry.stat()
                            if DIGEST.fullmatch(entry.name):
                                yield StoredObject(entry.name, now - status.st_mtime, status.st_size, tournament_id)

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Unlinks an object if it is old; the lock excludes a put between reading its age and unlinking it."""
        path = self._object_path(self._tournament_id, name)
        with self._translated_errors(), self._locked():
            try:
                old = self._now() - path.stat().st_mtime >= minimum_age_seconds
            except FileNotFoundError:
                return False
            if old:
                path.unlink()
            return old

    def read_pointer(self, agent_id: str) -> tuple[Pointer, str] | None:
        """Reads a pointer; its tag is the SHA-256 of its file."""
        data = self._pointer_bytes(agent_id)
        if data is None:
            return None
        try:
            return pointer_from_bytes(data), digest(data)
        except DataLoss as error:
            raise DataLoss(f"pointer of agent {agent_id} in {self.uri} is damaged: {error.message}") from error

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        """Replaces a pointer by rename; of several processes with one tag, one succeeds."""
        path = self._pointer_path(agent_id)
        with self._translated_errors(), self._locked():
            data = self._pointer_bytes(agent_id)
            if etag != (None if data is None else digest(data)):
                raise Aborted(
                    f"pointer of agent {agent_id} in {self.uri} was changed by another process; read it again"
                )
            with _written(self._incoming, canonical_json(pointer)) as incoming:
                incoming.replace(path)
            _flush_folder(self._pointers)

    def delete_pointer(self, agent_id: str) -> None:
        """Unlinks the file of the pointer."""
        with self._translated_errors(), self._locked():
            self._pointer_path(agent_id).unlink(missing_ok=True)

    def delete_tournament(self, tournament_id: str) -> int:
        """Removes the folder."""
        check_tournament_id(tournament_id)
        objects = sum(1 for _ in self.within(tournament_id).list_objects())
        with self._translated_errors(), suppress(FileNotFoundError):
            shutil.rmtree(self._tournaments / tournament_id)
        return objects

    def remove_abandoned(self) -> int:
        """Deletes old files in incoming/ that nothing locks."""
        with self._translated_errors():
            try:
                return self._remove_abandoned()
            except OSError:
                # The file system is read-only, or these files are of another user.
                return sum(1 for _ in self._incoming.iterdir())

    def list_pointers(self) -> Iterator[Pointer]:
        """Reads all pointers in the order of their agents' ids."""
        with self._translated_errors():
            # Other programs leave files there too, such as `._NAME`.
            names = sorted(path.stem for path in self._pointers.glob("*.json") if AGENT_ID.fullmatch(path.stem))
        for name in names:
            found = self.read_pointer(name)
            if found:
                yield found[0]

    def _searched(self) -> Iterator[str]:
        """Yields the tournaments whose folders are read, in order."""
        yield from self._readable
        if self._tournament_id == SHARED:
            named = (path.name for path in self._tournaments.iterdir() if path.is_dir())
            yield from (name for name in sorted(named) if TOURNAMENT_ID.fullmatch(name))

    def _objects(self, tournament_id: str) -> Path:
        return (self._tournaments / tournament_id if tournament_id else self._folder) / "objects"

    def _object_path(self, tournament_id: str, name: str) -> Path:
        check_digest(name)
        return self._objects(tournament_id) / name[:2] / name

    def _pointer_path(self, agent_id: str) -> Path:
        check_agent_id(agent_id)
        return self._pointers / f"{agent_id}.json"

    def _pointer_bytes(self, agent_id: str) -> bytes | None:
        path = self._pointer_path(agent_id)
        with self._translated_errors(), suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def _remove_abandoned(self) -> int:
        left = list(self._incoming.iterdir())
        # The time is read by a write, which a store without such files is spared.
        oldest = self._now() - INCOMING_LIFE_SECONDS if left else 0.0
        kept = 0
        for path in left:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime >= oldest or _has_writer(path):
                    kept += 1
                else:
                    path.unlink()
        return kept

    def _now(self) -> float:
        """Returns the time that ages are measured by. A file server sets the times of its files by its own clock."""
        if self._clock:
            return self._clock()
        lock = self._folder / "lock"
        os.utime(lock)
        return lock.stat().st_mtime

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock belongs to the open file, not to the process: it also separates threads, and is released when the
        # holder is killed.
        with (self._folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = f"checkpoint store {self._folder}: {error.strerror} ({error.filename or 'while writing'})"
            if error.errno in FULL:
                raise ResourceExhausted(f"{cause}; make room; no incomplete checkpoint was published") from error
            if self._usable:
                raise Unavailable(f"{cause}; repair the file system or its permissions") from error
            raise FailedPrecondition(f"{cause}; it must be a folder that this process can write") from error


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a folder; none if there is no such folder.

    Not with pathlib, which interns every name: the table of interned names grows with the files of the store.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from entries


def _read(path: Path, largest_bytes: int | None) -> Arrival:
    with path.open("rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        check_size(f"object {path.name}", size_bytes, largest_bytes)
        return receive(size_bytes, file.readinto)


@contextmanager
def _written(folder: Path, data: bytes) -> Iterator[Path]:
    """Yields a new file that holds the bytes durably; deletes it after the block unless it was renamed."""
    descriptor, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # Held until the file is renamed, so that others can tell whether it has a writer.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _has_writer(path: Path) -> bool:
    """Whether a process writes a file of incoming/."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _make_durable_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_durable_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
