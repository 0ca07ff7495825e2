"""Uses the backups in a checkpoint store by the permissions that the leaderboard grants to the orchestrator.

An orchestrator with such a store has no credentials. The leaderboard reads and swaps the pointers of its backups, and
signs a URL for each object that it transfers. Nothing else in the store can be reached.

The methods block: call them from any thread but that of the event loop.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from podrace.backup.copies import place_of
from podrace.checkpoint.v1 import store_pb2 as pb
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import require_minio
from podrace.checkpoint_store.store import StoredObject, UrlGrant, check_digest, verified
from podrace.digests import digest
from podrace.errors import Aborted, InvalidArgument, NotFound, PermissionDenied, missing_object

if TYPE_CHECKING:
    # A service with a store in a folder does not need the package minio.
    from podrace.checkpoint_store.presigned import Requests

SERVICE = "orchestrator"
MOST_FILES = 1000
"""Most objects of one request."""
Call = Callable[[str, Message], Any]
"""Calls a method of the leaderboard's StoreService; blocks."""


def needs_grants(uri: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a store has permissions for single objects, and the environment has no credentials for it."""
    if not uri.startswith("minio"):
        return False
    from podrace.checkpoint_store.minio_address import FAMILIES

    names = [name for access_key, _, _ in FAMILIES for name in (access_key, f"{access_key}_FILE")]
    return not any(environ.get(name) for name in names)


class GrantedBackupStore:
    """The checkpoint store of the orchestrator's backups. See CheckpointStore for the methods and their errors."""

    def __init__(self, call: Call, requests: "Requests", uri: str, name: str) -> None:
        """Makes no call yet.

        Args:
            call: Asks the leaderboard.
            requests: Sends the requests to the store.
            uri: URI of the store, for messages.
            name: `backup.name`.
        """
        self._call, self._requests, self._uri, self._name = call, requests, uri, name
        self._uploads: dict[str, UrlGrant | None] = {}

    @classmethod
    def open(
        cls, uri: str, name: str, call: Call, deadline_seconds: float, environ: Mapping[str, str] = os.environ
    ) -> "GrantedBackupStore":
        """Opens the store without credentials; sends no request yet.

        Args:
            uri: URI of the store. Its host must be the one that the leaderboard uses: signatures cover it.
            name: `backup.name`.
            call: Asks the leaderboard.
            deadline_seconds: How long each transfer is retried.
            environ: Environment with the certificate authorities of the store.

        Raises:
            PodraceError: As podrace.checkpoint_store.open_store.
        """
        require_minio(uri)
        from podrace.checkpoint_store.minio_address import parse_address, read_ca_file
        from podrace.checkpoint_store.minio_connection import open_connections
        from podrace.checkpoint_store.minio_retries import RetryPolicy
        from podrace.checkpoint_store.presigned import Requests

        address = parse_address(uri)
        connections = open_connections(address, read_ca_file(address, environ))
        return cls(call, Requests(address, connections, RetryPolicy(deadline_seconds)), uri, name)

    @property
    def uri(self) -> str:
        """The URI of the store."""
        return self._uri

    @property
    def concurrency(self) -> int:
        """One object at a time."""
        return 1

    def within(self, tournament_id: str, *also_read: str) -> "GrantedBackupStore":
        """Returns this store, which is that of the orchestrator's backups; raises PermissionDenied for another one."""
        if tournament_id != place_of(self._name, SERVICE):
            raise PermissionDenied(f"{self._uri}: access is granted for backups of the orchestrator only")
        return self

    # --- objects ----------------------------------------------------------------------------------------------

    def announce(self, sizes: Mapping[str, int]) -> None:
        """Asks for permission to put the objects."""
        names = list(sizes)
        for begin in range(0, len(names), MOST_FILES):
            wanted = names[begin : begin + MOST_FILES]
            files = [pb.StoredFile(digest=name, size_bytes=sizes[name]) for name in wanted]
            answer = self._call("GrantBackupTransfers", pb.GrantBackupTransfersRequest(name=self._name, files=files))
            granted = {upload.digest: UrlGrant(upload.url, dict(upload.headers)) for upload in answer.uploads}
            # An object without a URL exists, and is kept as if it had been put.
            self._uploads |= {name: granted.get(name) for name in wanted}

    def put_object(self, data: bytes, name: str = "") -> str:
        """Sends the bytes to the store, unless the object exists and is intact."""
        name = name or digest(data)
        if name not in self._uploads:
            self.announce({name: len(data)})
        grant = self._uploads.pop(name)
        if grant:
            # The reply to an earlier attempt may have been lost: then it is stored.
            with suppress(Aborted):
                self._requests.put(grant, data, f"object {name}")
        return name

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        """Reads an object and verifies it."""
        check_digest(name)
        request = pb.GrantBackupTransfersRequest(name=self._name, digests=[name])
        (read,) = self._call("GrantBackupTransfers", request).reads
        try:
            arrival = self._requests.get(UrlGrant(read.url, {}), f"object {name}", largest_bytes)
        except NotFound as error:
            raise missing_object(name, self._uri) from error
        return verified(name, arrival, self._uri)

    def has_object(self, name: str) -> bool:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard looks for objects")

    def list_objects(self) -> Sequence[StoredObject]:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard lists objects")

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Is refused."""
        raise PermissionDenied(f"object {name} in {self._uri}: only the leaderboard deletes objects")

    def delete_tournament(self, tournament_id: str) -> int:
        """Is refused."""
        raise PermissionDenied(f"{tournament_id} in {self._uri}: only the leaderboard deletes folders")

    def remove_abandoned(self) -> int:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard removes unfinished writes")

    # --- pointers ---------------------------------------------------------------------------------------------

    def read_pointer(self, agent_id: str) -> tuple[Pointer, str] | None:
        """Asks the leaderboard for a pointer to a backup."""
        request = pb.ListBackupPointersRequest(name=self._name, pointer_ids=[agent_id])
        answer = self._call("ListBackupPointers", request)
        return (answer.pointers[0], answer.etags[0]) if answer.pointers else None

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        """Asks the leaderboard to replace a pointer to a backup."""
        if pointer.agent_id != agent_id:
            raise InvalidArgument(f"pointer of {agent_id}: names {pointer.agent_id}")
        request = pb.SwapBackupPointerRequest(name=self._name, pointer_id=agent_id, pointer=pointer, etag=etag or "")
        self._call("SwapBackupPointer", request)

    def delete_pointer(self, agent_id: str) -> None:
        """Asks the leaderboard to delete a pointer to a backup."""
        self._call("SwapBackupPointer", pb.SwapBackupPointerRequest(name=self._name, pointer_id=agent_id))

    def list_pointers(self) -> Sequence[Pointer]:
        """Asks the leaderboard for all pointers to backups of the orchestrator."""
        answer = self._call("ListBackupPointers", pb.ListBackupPointersRequest(name=self._name))
        return list(answer.pointers)
