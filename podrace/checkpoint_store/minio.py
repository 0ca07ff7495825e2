"""Stores checkpoints in a bucket of an S3 server that honors conditions on writes (the store `minio`).

    PREFIX/objects/ab/abcdef...     immutable, named by their SHA-256; the server records when they were last put
    PREFIX/pointers/AGENT.json      one per agent, replaced by a PUT that requires the previous ETag

The names are those of the store `folder`, so one store can be copied to the other. A process that is killed at any
point leaves whole objects, and perhaps an unfinished upload in parts, which is invisible. A process that opens the
store at least an hour later aborts it.

S3 has no deletion on the condition that an object is old. One round trip lies between reading the age of an object and
deleting it. If the same bytes are put again in between, they are lost, unless the bucket keeps versions: then only the
old version is deleted.
"""

import os
from collections.abc import Iterator, Mapping

import structlog

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.manifest import canonical_json, pointer_from_bytes
from podrace.checkpoint_store.minio_address import parse_address, read_access
from podrace.checkpoint_store.minio_client import Bucket, RetryPolicy
from podrace.checkpoint_store.minio_connection import TRANSFERS
from podrace.checkpoint_store.store import DIGEST, StoredObject, check_agent_id, check_digest, verified
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, FailedPrecondition, NotFound, PermissionDenied, Unimplemented

_log = structlog.get_logger(__name__)
UPLOAD_LIFE_SECONDS = 3600.0


class MinioStore:
    """Stores checkpoints in a bucket. See CheckpointStore for the methods and their errors.

    Each method also raises PermissionDenied (the credentials are not accepted), FailedPrecondition (there is no such
    bucket, the server is not an S3 server, TLS fails, or the clocks differ too much), and Unavailable when a failure
    that may pass did not pass within the deadline.
    """

    def __init__(self, bucket: Bucket) -> None:
        """Sends no request yet."""
        self._bucket = bucket
        self._objects = f"{bucket.address.prefix}objects/"
        self._pointers = f"{bucket.address.prefix}pointers/"

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

    def put_object(self, data: bytes) -> str:
        """Writes an object, or writes it again."""
        name = digest(data)
        self._bucket.put(self._object_key(name), data, name, f"object {name}")
        return name

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        """Reads an object and verifies it."""
        key = self._object_key(name)
        try:
            arrival, _ = self._bucket.get(key, f"object {name}", largest_bytes)
        except NotFound as error:
            raise NotFound(f"object {name} is not in {self.uri}") from error
        return verified(name, arrival, self.uri)

    def list_objects(self) -> Iterator[StoredObject]:
        """Lists the objects, a thousand per request."""
        for entry in self._bucket.entries(self._objects, "objects"):
            name = entry.key.rpartition("/")[2]
            if DIGEST.fullmatch(name) and entry.key == self._object_key(name):
                yield StoredObject(name, self._bucket.now_seconds() - entry.modified_seconds, entry.size_bytes)

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Deletes an object if it is old."""
        what = f"object {name}"
        entry = self._bucket.find(self._object_key(name), what)
        if entry is None or self._bucket.now_seconds() - entry.modified_seconds < minimum_age_seconds:
            return False
        self._bucket.delete(entry, what)
        return True

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

    def list_pointers(self) -> Iterator[Pointer]:
        """Reads all pointers in the order of their agents' ids."""
        for entry in self._bucket.entries(self._pointers, "pointers"):
            name = entry.key.removeprefix(self._pointers)
            if name.endswith(".json") and "/" not in name:
                found = self.read_pointer(name.removesuffix(".json"))
                if found:
                    yield found[0]

    def remove_abandoned(self) -> None:
        """Aborts uploads that a killed writer left, if the server can list them; they only take space."""
        try:
            aborted = self._bucket.abort_uploads(self._objects, UPLOAD_LIFE_SECONDS)
        except (Aborted, FailedPrecondition, NotFound, PermissionDenied, Unimplemented) as error:
            _log.debug("unfinished uploads cannot be listed; set an expiry for them on the bucket", error=error.message)
        else:
            if aborted:
                _log.info("unfinished uploads aborted", count=aborted)

    def _object_key(self, name: str) -> str:
        check_digest(name)
        return f"{self._objects}{name[:2]}/{name}"

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
