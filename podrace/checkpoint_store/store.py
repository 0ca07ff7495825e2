"""Defines the interface of a checkpoint store: immutable objects, and pointers replaced by compare-and-swap.

The operations built on it (claim, publish, fetch, collect) have one implementation for all stores.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.arrival import Arrival
from podrace.digests import digest
from podrace.errors import BAD_DIGEST as BAD_DIGEST
from podrace.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted

DIGEST = re.compile(r"[0-9a-f]{64}")
AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

PROBE_AGENT_ID = "podrace-probe"
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


class ObjectStore(Protocol):
    """Stores immutable bytes under their SHA-256.

    A read returns exactly the bytes that were put, or fails:

        name = store.put_object(data)
        assert store.get_object(name) == data
    """

    def put_object(self, data: bytes) -> str:
        """Stores bytes durably and returns their digest; putting them again only resets the age of the object.

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
            ResourceExhausted: The object is larger.
            DataLoss: The bytes have another digest (BAD_DIGEST), or are truncated.
            NotFound: There is no such object.
            InvalidArgument: The name is not a digest.
        """
        ...

    def list_objects(self) -> Iterable[StoredObject]:
        """Lists the objects in no particular order; an object added or deleted meanwhile may be missing."""
        ...

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Deletes an object unless it is younger; returns whether it was deleted.

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


def verified(name: str, arrival: Arrival, uri: str) -> bytes:
    """Returns the received bytes of an object after comparing their digest with its name.

    Raises:
        DataLoss: The digest differs (BAD_DIGEST).
    """
    if arrival.digest != name:
        raise DataLoss(
            f"object {name} in {uri} is damaged: its {len(arrival.data)} bytes have the digest {arrival.digest}",
            reason=BAD_DIGEST,
        )
    return arrival.data


def check_size(what: str, size_bytes: int, largest_bytes: int | None) -> None:
    """Checks the size of an object before it is read.

    Raises:
        ResourceExhausted: The object is larger.
    """
    if largest_bytes is not None and size_bytes > largest_bytes:
        raise ResourceExhausted(f"{what} has {size_bytes} bytes; at most {largest_bytes} are read")


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
