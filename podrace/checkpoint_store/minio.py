"""Stores checkpoints in a bucket of an S3 server that honors conditions on writes (the store `minio`).

    PREFIX/tournaments/TOURNAMENT/objects/ab/abcdef...
                                    immutable objects of one tournament, named by their SHA-256; the server records when
                                    they were last put
    PREFIX/objects/ab/abcdef...     objects of podrace 0.1.0, and of checks
    PREFIX/pointers/AGENT.json      one per agent, replaced by a PUT that requires the previous ETag

The names are those of the store `folder`, so one store can be copied to the other. A process that is killed at any
point leaves whole objects, and perhaps an unfinished upload in parts, which is invisible. It is aborted an hour later,
when a process opens the store or the leaderboard collects garbage.

S3 has no deletion on the condition that an object is old. One round trip lies between reading the age of an object and
deleting it. If the same bytes are put again in between, they are lost, unless the bucket keeps versions: then only the
old version is deleted. All versions are deleted only of pointers and tournaments that nothing publishes to any more.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy

import structlog
from minio.error import S3Error

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.manifest import canonical_json, pointer_from_bytes
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket
from podrace.checkpoint_store.minio_connection import TRANSFERS, BucketEntry
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.checkpoint_store.store import (
    AGENT_ID,
    SHARED,
    TOURNAMENT_ID,
    StoredObject,
    UrlGrant,
    check_agent_id,
    check_digest,
    check_tournament_id,
    object_path,
    object_place,
    readable_folders,
    verified,
)
from podrace.digests import digest
from podrace.errors import (
    Aborted,
    DataLoss,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    PodraceError,
    Unavailable,
    Unimplemented,
    missing_object,
)

_log = structlog.get_logger(__name__)
UPLOAD_LIFE_SECONDS = 3600.0


class MinioStore:
    """Stores checkpoints in a bucket. See CheckpointStore for the methods and their errors.

    Each method also raises PermissionDenied (the credentials are not accepted), FailedPrecondition (there is no such
    bucket, the server is not an S3 server, TLS fails, or the clocks differ too much), and Unavailable when a failure
    that may pass did not pass within the deadline. Once the store was usable, refused credentials, a missing bucket,
    clocks that differ, and answers that are not those of an S3 server are Unavailable.
    """

    def __init__(self, bucket: Bucket) -> None:
        """Sends no request yet."""
        self._bucket = bucket
        self._prefix = bucket.address.prefix
        self._pointers = f"{self._prefix}pointers/"
        self._tournament_id, self._readable = SHARED, readable_folders(SHARED, ())
        self._rewriting = threading.Lock()

    @property
    def uri(self) -> str:
        """Names host, bucket and prefix."""
        return self._bucket.address.uri

    @property
    def concurrency(self) -> int:
        """The number of parallel transfers of the client."""
        return TRANSFERS

    @property
    def skew_seconds(self) -> float:
        """Server's clock minus this machine's clock."""
        return self._bucket.skew_seconds

    def mark_usable(self) -> None:
        """See UncheckedStore."""
        self._bucket.usable = True

    def within(self, tournament_id: str, *also_read: str) -> "MinioStore":
        """Returns a view of one tournament, with the same connections."""
        view = copy(self)
        view._tournament_id, view._readable = tournament_id, readable_folders(tournament_id, also_read)
        return view

    def announce(self, sizes: Mapping[str, int]) -> None:
        """Needs no permission."""

    def put_object(self, data: bytes, name: str = "") -> str:
        """Writes an object, or writes it again."""
        name = name or digest(data)
        self._bucket.put(self._object_key(self._tournament_id, name), data, name, f"object {name}")
        return name

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        """Reads an object and verifies it."""
        check_digest(name)
        for tournament_id in self._searched():
            with suppress(NotFound):
                arrival, _ = self._bucket.get(self._object_key(tournament_id, name), f"object {name}", largest_bytes)
                return verified(name, arrival, self.uri)
        raise missing_object(name, self.uri)

    def has_object(self, name: str) -> bool:
        """Asks for the entry of the object."""
        return self._bucket.find(self._object_key(self._tournament_id, name), f"object {name}") is not None

    def list_objects(self) -> Iterator[StoredObject]:
        """Lists the objects, a thousand per request."""
        whole = "objects/", "tournaments/"
        for folder in (f"tournaments/{self._tournament_id}/objects/",) if self._tournament_id else whole:
            for entry in self._bucket.entries(f"{self._prefix}{folder}", "objects"):
                place = object_place(entry.key.removeprefix(self._prefix))
                if place:
                    age_seconds = self._bucket.now_seconds() - entry.modified_seconds
                    yield StoredObject(place.digest, age_seconds, entry.size_bytes, place.tournament_id)

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Deletes an object if it is old."""
        what = f"object {name}"
        entry = self._bucket.find(self._object_key(self._tournament_id, name), what)
        if entry is None or self._bucket.now_seconds() - entry.modified_seconds < minimum_age_seconds:
            return False
        self._bucket.delete(entry, what)
        return True

    def grant_upload(self, name: str, size_bytes: int, lifetime_seconds: float) -> UrlGrant:
        """Signs a URL to put an object."""
        return self._bucket.grant_put(self._object_key(self._tournament_id, name), name, size_bytes, lifetime_seconds)

    def grant_read(self, name: str, lifetime_seconds: float) -> UrlGrant:
        """Signs a URL to get an object."""
        return self._bucket.grant_get(self._object_key(self._tournament_id, name), lifetime_seconds)

    def renew_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Has the server copy an object onto itself if it is old, which verifies nothing and transfers no bytes.

        If the server refuses that, the object is read, verified and written again, in pieces. Only one object is
        rewritten at a time: a pod names up to a thousand, of up to 5 GiB each, in one request.
        """
        key, what = self._object_key(self._tournament_id, name), f"object {name}"
        entry = self._bucket.find(key, what)
        if entry is None or self._bucket.now_seconds() - entry.modified_seconds < minimum_age_seconds:
            return entry is not None
        try:
            return self._bucket.copy_onto_itself(entry, what) or self._rewrite(entry, name, what)
        except NotFound:
            return False

    def _rewrite(self, old: BucketEntry, name: str, what: str) -> bool:
        with self._rewriting:
            # Another thread may have rewritten it meanwhile.
            entry = self._bucket.find(old.key, what)
            if entry is not None and entry.modified_seconds <= old.modified_seconds:
                self._bucket.rewrite(entry, name, what)
            return entry is not None

    def read_pointer(self, agent_id: str) -> tuple[Pointer, str] | None:
        """Reads a pointer; its tag is the ETag."""
        try:
            arrival, etag = self._bucket.get(self._pointer_key(agent_id), f"pointer of agent {agent_id}")
        except NotFound:
            return None
        try:
            return pointer_from_bytes(arrival.data), etag
        except DataLoss as error:
            raise DataLoss(f"pointer of agent {agent_id} in {self.uri} is damaged: {error.message}") from error

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        """Replaces a pointer by a conditional PUT; of several processes with one tag, one succeeds."""
        key, what = self._pointer_key(agent_id), f"pointer of agent {agent_id}"
        self._bucket.put_if(key, canonical_json(pointer), etag, what)

    def delete_pointer(self, agent_id: str) -> None:
        """Deletes the object of the pointer, and its earlier versions, of which one would take its place."""
        key, what = self._pointer_key(agent_id), f"pointer of agent {agent_id}"
        if entry := self._bucket.find(key, what):
            every = self._bucket.versions(key, what) if entry.version_id else [entry]
            self._delete_each([each for each in every if each.key == key])

    def delete_tournament(self, tournament_id: str) -> int:
        """Deletes the objects one by one, with their earlier versions if the bucket keeps any."""
        check_tournament_id(tournament_id)
        prefix, what = f"{self._prefix}tournaments/{tournament_id}/", f"objects of {tournament_id}"
        present = list(self._bucket.entries(prefix, what))
        # A list of objects does not state their versions.
        first = self._bucket.find(present[0].key, what) if present else None
        self._delete_each(self._bucket.versions(prefix, what) if first and first.version_id else present)
        return len(present)

    def _delete_each(self, entries: Sequence[BucketEntry]) -> None:
        failure: PodraceError | None = None
        for entry in entries:
            try:
                self._bucket.delete(entry, entry.key)
            except PodraceError as error:
                # One that the server refuses to delete, because it is locked, must not keep the others.
                if not isinstance(error.__cause__, S3Error):
                    raise
                failure = failure or error
        if failure:
            raise failure

    def list_pointers(self) -> Iterator[Pointer]:
        """Reads all pointers in the order of their agents' ids."""
        for entry in self._bucket.entries(self._pointers, "pointers"):
            name, _, ending = entry.key.removeprefix(self._pointers).rpartition(".")
            # Other programs leave objects there too.
            if ending == "json" and AGENT_ID.fullmatch(name) and (found := self.read_pointer(name)):
                yield found[0]

    def remove_abandoned(self) -> int:
        """Aborts uploads that a killed writer left, if the server can list them; they only take space."""
        found = aborted = 0
        try:
            for folder in ("objects", "tournaments"):
                uploads = self._bucket.abort_uploads(f"{self._prefix}{folder}/", UPLOAD_LIFE_SECONDS)
                found, aborted = found + uploads.found, aborted + uploads.aborted
        except (Aborted, FailedPrecondition, NotFound, PermissionDenied, Unavailable, Unimplemented) as error:
            _log.debug("unfinished uploads cannot be listed; set an expiry for them on the bucket", error=error.message)
        else:
            if aborted:
                _log.info("unfinished uploads aborted", count=aborted)
        return found - aborted

    def _searched(self) -> Iterator[str]:
        """Yields the tournaments whose folders are read, in order."""
        yield from self._readable
        if self._tournament_id == SHARED:
            found = self._bucket.folders(f"{self._prefix}tournaments/", "tournaments")
            yield from (name for name in found if TOURNAMENT_ID.fullmatch(name))

    def _object_key(self, tournament_id: str, name: str) -> str:
        check_digest(name)
        return f"{self._prefix}{object_path(tournament_id, name)}"

    def _pointer_key(self, agent_id: str) -> str:
        check_agent_id(agent_id)
        return f"{self._pointers}{agent_id}.json"


def open_minio(uri: str, *, deadline_seconds: float, environ: Mapping[str, str] = os.environ) -> MinioStore:
    """Opens the store that a URI names, with the credentials of the environment; sends no request yet.

    Raises:
        InvalidArgument: The URI names no store.
        FailedPrecondition: There are no credentials.
        Unimplemented: The installed package lacks a private method or has changed one.
    """
    return MinioStore(_bucket(uri, deadline_seconds, environ))


def create_bucket(uri: str, *, deadline_seconds: float, environ: Mapping[str, str] = os.environ) -> bool:
    """Creates the bucket that a URI names if it does not exist; returns whether it was created.

    Raises:
        PermissionDenied: The credentials are not accepted, or do not allow it.
        Unavailable: The server cannot be reached.
        InvalidArgument, FailedPrecondition, Unimplemented: As open_minio.
    """
    return _bucket(uri, deadline_seconds, environ).create()


def _bucket(uri: str, deadline_seconds: float, environ: Mapping[str, str]) -> Bucket:
    address = parse_address(uri)
    return Bucket(address, read_access(address, environ), RetryPolicy(deadline_seconds))
