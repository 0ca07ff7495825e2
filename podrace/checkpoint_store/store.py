"""Defines the interface of a checkpoint store: immutable objects, and pointers replaced by compare-and-swap.

Each tournament has its own folder of objects, so that access to them can be granted for one tournament:

    tournaments/TOURNAMENT/objects/ab/abcdef...     objects of one tournament
    objects/ab/abcdef...                            the shared folder: objects of podrace 0.1.0, and of checks
    pointers/AGENT.json                             one per agent

The operations built on it (claim, publish, fetch, collect) have one implementation for all stores.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.arrival import Arrival
from podrace.digests import digest
from podrace.errors import BAD_DIGEST as BAD_DIGEST
from podrace.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted

DIGEST = re.compile(r"[0-9a-f]{64}")
AGENT_ID = TOURNAMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
SHARED = ""
"""In place of a tournament: the shared folder, which every tournament may read."""

LARGEST_UPLOAD_BYTES = 5 * 2**30
"""Largest object that a grant allows to upload: an S3 server takes no larger one in a single request, and an upload in
parts has no digest that a signature could cover."""
PROBE_AGENT_ID = "podrace-probe"
BACKUP_PREFIX = "podrace-backup-"
"""Begins the ids of the pointers of backups, which are not agents."""
ARCHIVE_PREFIX = "podrace-archive-"
"""Begins the ids of the pointers of archives of tournaments, which are not agents."""
PROBE_OBJECT = b"podrace probe"


@dataclass(frozen=True)
class StoredObject:
    """An object as a store lists it."""

    digest: str
    """SHA-256 of its bytes, lower-case hexadecimal."""
    age_seconds: float
    """Time since it was last put, by the store's clock."""
    size_bytes: int
    """Number of bytes."""
    tournament_id: str = SHARED
    """Tournament in whose folder it is."""


@dataclass(frozen=True)
class UrlGrant:
    """Permission for one HTTP request."""

    url: str
    """Where to send it."""
    headers: Mapping[str, str]
    """Headers that the request must have."""


class ObjectStore(Protocol):
    """Stores immutable bytes under their SHA-256, seen from one tournament, or as a whole.

    A tournament puts objects into its own folder, and reads from its own folder, from those of named other tournaments,
    and from the shared folder. The store as a whole puts objects into the shared folder and reads all folders.

    A read returns exactly the bytes that were put, or fails:

        name = store.put_object(data)
        assert store.get_object(name) == data
    """

    def announce(self, sizes: Mapping[str, int]) -> None:
        """Announces objects that will be put next, so that a store that needs permission asks once for all of them.

        Args:
            sizes: Their numbers of bytes by digest.

        Raises:
            FailedPrecondition: Permission is refused (STALE_EPOCH).
        """
        ...

    def put_object(self, data: bytes, name: str = "") -> str:
        """Stores bytes durably and returns their digest; putting them again only resets the age of the object.

        Args:
            data: The bytes.
            name: Their digest, if the caller has computed it.

        Raises:
            ResourceExhausted: The store is full.
        """
        ...

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        """Returns the bytes stored under a digest, after verifying all of them.

        Args:
            name: The digest.
            largest_bytes: A larger object is not read; None: an object of any size is.

        Raises:
            ObjectTooLarge: The object is larger.
            DataLoss: The bytes have another digest (BAD_DIGEST), or are truncated.
            NotFound: There is no such object.
            InvalidArgument: The name is not a digest.
        """
        ...

    def has_object(self, name: str) -> bool:
        """Returns whether an object is in the folder that objects are put into; its bytes are not verified.

        Raises:
            InvalidArgument: The name is not a digest.
        """
        ...

    def list_objects(self) -> Iterable[StoredObject]:
        """Lists the objects of the tournament, or all of the store, in no particular order.

        An object added or deleted meanwhile may be missing. An object may be in several folders.
        """
        ...

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Deletes an object from the folder that objects are put into, unless it is younger; returns whether it did.

        Reads the age again, because a publisher may have put the same bytes since the object was listed.

        Raises:
            InvalidArgument: The name is not a digest.
        """
        ...


class PointerStore(Protocol):
    """Stores one small mutable record per agent, replaced by compare-and-swap.

    A caller whose swap fails reads the pointer and decides again:

        pointer, etag = store.read_pointer(agent_id) or (Pointer(agent_id=agent_id), None)
        store.swap_pointer(agent_id, decide(pointer), etag)
    """

    def read_pointer(self, agent_id: str) -> tuple[Pointer, str] | None:
        """Returns an agent's pointer and the tag of its present content; None if there is no pointer.

        Raises:
            DataLoss: The pointer is damaged.
            InvalidArgument: The agent id cannot name a pointer.
        """
        ...

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        """Replaces a pointer durably if its content still has this tag; None: if there is no pointer yet.

        Raises:
            Aborted: The content has another tag; nothing was changed.
            InvalidArgument: The agent id cannot name a pointer.
        """
        ...

    def delete_pointer(self, agent_id: str) -> None:
        """Deletes a pointer, if there is one; only of an agent that no pod trains any more.

        Raises:
            InvalidArgument: The agent id cannot name a pointer.
        """
        ...

    def list_pointers(self) -> Iterable[Pointer]:
        """Lists the pointers of all agents and the one of check_store; raises as read_pointer does."""
        ...


class CheckpointStore(ObjectStore, PointerStore, Protocol):
    """Stores the checkpoints of agents."""

    @property
    def uri(self) -> str:
        """URI of the store, for open_store and for messages."""
        ...

    @property
    def concurrency(self) -> int:
        """Number of objects to put at the same time: more than one if they cross a network."""
        ...

    def within(self, tournament_id: str, *also_read: str) -> "CheckpointStore":
        """Returns the store as one tournament sees it; pointers are the same.

        Args:
            tournament_id: The tournament; SHARED: the store as a whole.
            also_read: Other tournaments whose objects may be read, such as the one of an ancestor.

        Raises:
            InvalidArgument: A tournament id cannot name a folder.
        """
        ...

    def delete_tournament(self, tournament_id: str) -> int:
        """Deletes the folder of a tournament that nothing publishes to any more; returns its number of objects.

        Raises:
            InvalidArgument: The tournament id cannot name a folder.
        """
        ...

    def remove_abandoned(self) -> int:
        """Removes what killed writers have left of unfinished writes; returns how many remain, which may have a writer.

        Done when a store is opened, and with each garbage collection.
        """
        ...


@runtime_checkable
class GrantingStore(CheckpointStore, Protocol):
    """A store that can allow others to transfer single objects, without giving them its credentials."""

    def grant_upload(self, name: str, size_bytes: int, lifetime_seconds: float) -> UrlGrant:
        """Returns permission to put one object, with exactly these bytes, if it does not exist.

        Raises:
            InvalidArgument: The name is not a digest.
        """
        ...

    def grant_read(self, name: str, lifetime_seconds: float) -> UrlGrant:
        """Returns permission to get an object from the folder that objects are put into; raises as grant_upload."""
        ...

    def renew_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Resets the age of an object of this age or older; returns whether the object exists.

        Its bytes are verified only if they have to be read. Most servers can reset the age themselves.

        Raises:
            DataLoss: The object was read and is damaged (BAD_DIGEST).
            InvalidArgument: The name is not a digest.
        """
        ...


def verified(name: str, arrival: Arrival, uri: str) -> bytes:
    """Returns the received bytes of an object after comparing their digest with its name.

    Raises:
        DataLoss: The digest differs (BAD_DIGEST).
    """
    check_content(name, arrival.digest, len(arrival.data), uri)
    return arrival.data


def check_content(name: str, sha256: str, size_bytes: int, uri: str) -> None:
    """Compares the digest of the bytes of an object with its name.

    Raises:
        DataLoss: The digest differs (BAD_DIGEST).
    """
    if sha256 != name:
        line = f"object {name} in {uri} is damaged: its {size_bytes} bytes have the digest {sha256}"
        raise DataLoss(line, reason=BAD_DIGEST)


class ObjectTooLarge(ResourceExhausted):
    """An object is larger than the caller reads. Nothing of it was read."""


def check_size(what: str, size_bytes: int, largest_bytes: int | None) -> None:
    """Checks the size of an object before it is read.

    Raises:
        ObjectTooLarge: The object is larger.
    """
    if largest_bytes is not None and size_bytes > largest_bytes:
        raise ObjectTooLarge(f"{what} has {size_bytes} bytes; at most {largest_bytes} are read")


def check_digest(name: str) -> None:
    """Checks the name of an object.

    Raises:
        InvalidArgument: The name is not 64 lower-case hexadecimal digits.
    """
    if not DIGEST.fullmatch(name):
        raise InvalidArgument(f"object name {name!r} is not a SHA-256 in lower-case hexadecimal")


def check_agent_id(agent_id: str) -> None:
    """Checks that an agent id can name a pointer in every store.

    Raises:
        InvalidArgument: The agent id has other characters than letters, digits, '.', '_' and '-', or more than 200.
    """
    if not AGENT_ID.fullmatch(agent_id):
        raise InvalidArgument(
            f"agent id {agent_id!r} must be 1 to 200 letters, digits, '.', '_' or '-', and start with a letter or digit"
        )


def check_tournament_id(tournament_id: str) -> None:
    """Checks that a tournament id can name a folder in every store.

    Raises:
        InvalidArgument: It has other characters than letters, digits, '.', '_' and '-', or more than 200.
    """
    if not TOURNAMENT_ID.fullmatch(tournament_id):
        raise InvalidArgument(
            f"tournament id {tournament_id!r} must be 1 to 200 letters, digits, '.', '_' or '-', and start with a"
            " letter or digit"
        )


def readable_folders(tournament_id: str, also_read: Iterable[str]) -> tuple[str, ...]:
    """Returns the tournaments whose folders one tournament reads, in order, its own first and the shared one last.

    Raises:
        InvalidArgument: A tournament id cannot name a folder.
    """
    named = [one for one in dict.fromkeys((tournament_id, *also_read)) if one != SHARED]
    for one in named:
        check_tournament_id(one)
    return (*named, SHARED)


def object_path(tournament_id: str, name: str) -> str:
    """Returns the path of an object within a store."""
    folder = f"tournaments/{tournament_id}/" if tournament_id else ""
    return f"{folder}objects/{name[:2]}/{name}"


class Place(NamedTuple):
    """Where an object is."""

    tournament_id: str
    """Tournament in whose folder it is; SHARED: the shared folder."""
    digest: str
    """Its name."""


def object_place(path: str) -> Place | None:
    """Returns which object has a path within a store; None for a path of anything else."""
    folders, name = path.split("/"), path.rpartition("/")[2]
    tournament_id = folders[1] if folders[0] == "tournaments" and len(folders) > 1 else SHARED
    known = DIGEST.fullmatch(name) and (not tournament_id or TOURNAMENT_ID.fullmatch(tournament_id))
    return Place(tournament_id, name) if known and path == object_path(tournament_id, name) else None


class UncheckedStore(CheckpointStore, Protocol):
    """A store that has just been opened."""

    def mark_usable(self) -> None:
        """Records that the configuration is right, for all views.

        From now on, what an operator repairs without restarting the caller (a file system that is read-only, rotated
        credentials, a wrong clock) is Unavailable.
        """
        ...


def check_store(store: CheckpointStore) -> None:
    """Checks that a store returns what was put and honors conditions on writes. Safe while others use the store.

    Raises:
        FailedPrecondition: The store loses objects, ignores conditions, or cannot be written.
        ResourceExhausted: The store is full.
    """
    if not _keeps_objects(store):
        raise FailedPrecondition(f"checkpoint store {store.uri} does not return what was put; use another store")
    pointer = Pointer(agent_id=PROBE_AGENT_ID)
    if store.read_pointer(PROBE_AGENT_ID) is None:
        _swapped(store, pointer, None)  # may fail because another process was first, which does not matter
    if _swapped(store, pointer, None) or _swapped(store, pointer, digest(b"never the tag of a pointer")):
        raise FailedPrecondition(
            f"checkpoint store {store.uri} ignores conditions on writes (If-Match, If-None-Match): two pods could"
            " overwrite each other's checkpoints; use a store that honors them"
        )


def _keeps_objects(store: CheckpointStore) -> bool:
    try:
        return store.get_object(store.put_object(PROBE_OBJECT)) == PROBE_OBJECT
    except (DataLoss, NotFound):
        return False


def _swapped(store: CheckpointStore, pointer: Pointer, etag: str | None) -> bool:
    try:
        store.swap_pointer(PROBE_AGENT_ID, pointer, etag)
    except Aborted:
        return False
    return True
