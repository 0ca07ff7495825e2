"""Owns the store `folder`: checkpoints in a folder that all pods of one machine (or one shared file system) see.

    objects/ab/abcdef...     immutable, named by their SHA-256; their modification time is when they were last put
    pointers/AGENT.json      one an agent
    incoming/                files being written
    lock                     held (flock) while a pointer is swapped and while an object appears or goes

A file appears under its name by rename, after its bytes are on disk: a process killed at any point leaves whole files,
and perhaps one in incoming/, which any start an hour later removes.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.arrival import Arrival, receive
from podrace.checkpoint_store.manifest import canonical_json, pointer_from_bytes
from podrace.checkpoint_store.store import DIGEST, StoredObject, check_agent_id, check_digest, verified
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, FailedPrecondition, NotFound, ResourceExhausted

INCOMING_LIFE_SECONDS = 3600.0
FULL = {ENOSPC, EDQUOT, EFBIG}


class FolderStore:
    """Checkpoints in a folder. See CheckpointStore for the verbs and their errors."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Makes the folder where it is missing and removes what killed writers left there.

        Args:
            folder: Where the checkpoints lie.
            clock: Seconds since the epoch; ages of objects are counted by it.

        Raises:
            FailedPrecondition: The folder cannot be made or written.
            ResourceExhausted: The disk is full.
        """
        self._folder = folder.absolute()
        self._objects = self._folder / "objects"
        self._pointers = self._folder / "pointers"
        self._incoming = self._folder / "incoming"
        self._clock = clock
        with self._one_line():
            self._objects.mkdir(parents=True, exist_ok=True)
            self._pointers.mkdir(exist_ok=True)
            self._incoming.mkdir(exist_ok=True)
            (self._folder / "lock").touch()
            self._remove_abandoned()

    @property
    def uri(self) -> str:
        """Names the folder."""
        return f"folder://{self._folder}"

    @property
    def concurrency(self) -> int:
        """One: a disk gains nothing by several writers."""
        return 1

    def put_object(self, data: bytes) -> str:
        """Writes an object to incoming/ and renames it; one that is there already is replaced by its equal."""
        name = digest(data)
        path = self._object_path(name)
        with self._one_line():
            _make_durable_folder(path.parent)
            with _written(self._incoming, data) as incoming:
                now = self._clock()
                os.utime(incoming, (now, now))
                with self._locked():
                    incoming.replace(path)
            _flush_folder(path.parent)
        return name

    def get_object(self, name: str) -> bytes:
        """Reads an object and verifies it."""
        with self._one_line():
            try:
                return verified(name, _read(self._object_path(name)), self.uri)
            except FileNotFoundError as error:
                raise NotFound(f"object {name} is not in {self.uri}") from error

    def list_objects(self) -> Iterator[StoredObject]:
        """Walks through the objects."""
        with self._one_line():
            now = self._clock()
            for path in self._objects.glob("*/*"):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if DIGEST.fullmatch(path.name):
                        yield StoredObject(path.name, now - status.st_mtime, status.st_size)

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Unlinks an object if it is old; no put can come between the look and the unlink."""
        path = self._object_path(name)
        with self._one_line(), self._locked():
            try:
                old = self._clock() - path.stat().st_mtime >= minimum_age_seconds
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
        with self._one_line(), self._locked():
            data = self._pointer_bytes(agent_id)
            if etag != (None if data is None else digest(data)):
                raise Aborted(f"pointer of agent {agent_id} in {self.uri} was changed by somebody else; read it again")
            with _written(self._incoming, canonical_json(pointer)) as incoming:
                incoming.replace(path)
            _flush_folder(self._pointers)

    def list_pointers(self) -> Iterator[Pointer]:
        """Reads all pointers in the order of their agents' ids."""
        for path in sorted(self._pointers.glob("*.json")):
            found = self.read_pointer(path.stem)
            if found:
                yield found[0]

    def _object_path(self, name: str) -> Path:
        check_digest(name)
        return self._objects / name[:2] / name

    def _pointer_path(self, agent_id: str) -> Path:
        check_agent_id(agent_id)
        return self._pointers / f"{agent_id}.json"

    def _pointer_bytes(self, agent_id: str) -> bytes | None:
        path = self._pointer_path(agent_id)
        with self._one_line(), suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def _remove_abandoned(self) -> None:
        oldest = self._clock() - INCOMING_LIFE_SECONDS
        for path in self._incoming.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the open file, not of the process: it also keeps threads apart, and a killed holder lets it go.
        with (self._folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = f"checkpoint store {self._folder}: {error.strerror} ({error.filename or 'while writing'})"
            if error.errno in FULL:
                raise ResourceExhausted(f"{cause}; make room, nothing was half-published") from error
            raise FailedPrecondition(f"{cause}; it must be a folder that this process can write") from error


def _read(path: Path) -> Arrival:
    with path.open("rb", buffering=0) as file:
        return receive(os.fstat(file.fileno()).st_size, file.readinto)


@contextmanager
def _written(folder: Path, data: bytes) -> Iterator[Path]:
    # Yields a fresh file that holds the bytes durably; it is gone afterwards unless it was renamed.
    descriptor, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _make_durable_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
