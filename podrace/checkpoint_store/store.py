"""Owns what a checkpoint store is: objects that never change, pointers that change by compare-and-swap.

Everything above these verbs (claim, publish, fetch, collect) is written once and holds for every store.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.arrival import Arrival
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument, NotFound

DIGEST = re.compile(r"[0-9a-f]{64}")
AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

BAD_DIGEST = "ERROR_REASON_BAD_DIGEST"
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
    """Immutable bytes named by their SHA-256.

    What comes back is what was put, or nothing does:

        name = store.put_object(data)
        assert store.get_object(name) == data
    """

    def put_object(self, data: bytes) -> str:
        """Stores bytes durably and returns their digest; to put them again only makes the object young again.

        Raises:
            ResourceExhausted: The store is full.
        """
        ...

    def get_object(self, name: str) -> bytes:
        """Returns the bytes stored under a digest; nobody sees any of them before all are verified.

        Raises:
            DataLoss: They have another digest (BAD_DIGEST), or do not come to an end.
            NotFound: There is no such object.
            InvalidArgument: The name is not a digest.
        """
        ...

    def list_objects(self) -> Iterable[StoredObject]:
        """Lists the objects in no particular order; one that comes or goes meanwhile may be missing."""
        ...

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Deletes an object unless it is younger, and says whether it did.

        The age is looked at anew: a publisher may have put the same bytes again since the object was listed.

        Raises:
            InvalidArgument: The name is not a digest.
        """
        ...


class PointerStore(Protocol):
    """One small mutable record an agent, replaced by compare-and-swap.

    Whoever is not first reads again and decides anew:

        pointer, etag = store.read_pointer(agent_id) or (Pointer(agent_id=agent_id), None)
        store.swap_pointer(agent_id, decide(pointer), etag)
    """

    def read_pointer(self, agent_id: str) -> tuple[Pointer, str] | None:
        """Returns an agent's pointer and the tag that stands for its present content, None if there is none.

        Raises:
            DataLoss: The pointer is damaged.
            InvalidArgument: The agent id cannot name a pointer.
        """
        ...

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        """Replaces a pointer durably if it still has the content the tag stands for; None: if there is none yet.

        Raises:
            Aborted: It has other content; nothing was changed.
            InvalidArgument: The agent id cannot name a pointer.
        """
        ...

    def list_pointers(self) -> Iterable[Pointer]:
        """Lists the pointers of all agents (and that of check_store); raises as read_pointer does."""
        ...


class CheckpointStore(ObjectStore, PointerStore, Protocol):
    """Where the training files of agents lie; `uri` names it in messages."""

    @property
    def uri(self) -> str:
        """Opens this store again when given to open_store."""
        ...

    @property
    def concurrency(self) -> int:
        """How many objects put at once are worth the threads: more than one where they travel."""
        ...


def verified(name: str, arrival: Arrival, uri: str) -> bytes:
    """Returns what arrived from a store as the object of that name.

    Raises:
        DataLoss: It is something else (BAD_DIGEST).
    """
    if arrival.digest != name:
        raise DataLoss(
            f"object {name} in {uri} is damaged: its {len(arrival.data)} bytes have the digest {arrival.digest}",
            reason=BAD_DIGEST,
        )
    return arrival.data


def check_digest(name: str) -> None:
    """Refuses what cannot name an object.

    Raises:
        InvalidArgument: The name is not 64 lower-case hexadecimal digits.
    """
    if not DIGEST.fullmatch(name):
        raise InvalidArgument(f"object name {name!r} is not a SHA-256 in lower-case hexadecimal")


def check_agent_id(agent_id: str) -> None:
    """Refuses what cannot name a pointer in every store.

    Raises:
        InvalidArgument: The agent id has other characters, or more than 200.
    """
    if not AGENT_ID.fullmatch(agent_id):
        raise InvalidArgument(
            f"agent id {agent_id!r} must be 1 to 200 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )


def check_store(store: CheckpointStore) -> None:
    """Refuses a store that loses what is put or ignores conditions on writes. Safe while others use the store.

    Raises:
        FailedPrecondition: The store does not keep its promises, or cannot be written.
        ResourceExhausted: The store is full.
    """
    if not _keeps_objects(store):
        raise FailedPrecondition(f"checkpoint store {store.uri} does not return what was put; do not use it")
    pointer = Pointer(agent_id=PROBE_AGENT_ID)
    if store.read_pointer(PROBE_AGENT_ID) is None:
        _swapped(store, pointer, None)  # another process may be first, which is as good
    if _swapped(store, pointer, None) or _swapped(store, pointer, digest(b"never the tag of a pointer")):
        raise FailedPrecondition(
            f"checkpoint store {store.uri} ignores conditions on writes (If-Match, If-None-Match): two pods could"
            " publish over each other; use a store that honours them"
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
