"""Uses a checkpoint store by the permissions that the leaderboard grants to the holder of an assignment.

A pod with such a store has no credentials. The leaderboard swaps pointers for it, and signs a URL for each object that
it transfers. Listing and deleting are refused. Objects of a store in a folder are read and written directly, because a
folder has no permissions for single objects.

The methods block: call them from any thread but that of the event loop.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from podrace import rpc
from podrace.checkpoint.v1 import store_pb2 as pb
from podrace.checkpoint.v1 import store_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.store import ObjectStore, StoredObject, UrlGrant, check_digest, verified
from podrace.digests import digest
from podrace.errors import Aborted, InvalidArgument, NotFound, PermissionDenied, PodraceError, missing_object

if TYPE_CHECKING:
    # A pod with a store in a folder does not need the package minio.
    from podrace.checkpoint_store.presigned import Requests

DEADLINE_SECONDS = 60.0
"""Time limit of a call, longer than a leaderboard takes to restart."""
MOST_FILES = 1000
"""Most objects of one request."""
TRANSFERS = 4
"""Number of objects that are transferred at the same time."""
Request = TypeVar("Request")


@dataclass(frozen=True)
class AssignmentClaim:
    """What a pod works on, as the leaderboard checks it."""

    tournament_id: str
    agent_id: str = ""
    """The agent that it trains; empty for an evaluation."""
    lease_epoch: int = 0
    lease_token: Callable[[], str] = lambda: ""
    """Returns the token of the lease, which is renewed with it."""


class StoreClient:
    """Calls the StoreService of a leaderboard for one assignment, from a thread that is not its event loop's."""

    def __init__(
        self, stub: "pb_grpc.StoreServiceAsyncStub", loop: asyncio.AbstractEventLoop, claim: AssignmentClaim
    ) -> None:
        """Makes no call yet.

        Args:
            stub: Stub of the leaderboard's service.
            loop: The event loop of its channel.
            claim: The assignment.
        """
        self._stub: Any = stub
        self._loop, self.claim = loop, claim

    def call(self, method: str, request: Callable[..., Request], **fields: object) -> Any:
        """Makes one call and returns its response; raises PodraceError."""
        claim = self.claim
        message = request(
            tournament_id=claim.tournament_id,
            agent_id=claim.agent_id,
            lease_epoch=claim.lease_epoch,
            lease_token=claim.lease_token(),
            **fields,
        )
        calling = rpc.call(getattr(self._stub, method), message, deadline_seconds=DEADLINE_SECONDS)
        return asyncio.run_coroutine_threadsafe(calling, self._loop).result()


@dataclass(frozen=True)
class _Held:
    """A permission that can be used until a time of the monotonic clock."""

    grant: UrlGrant
    until_seconds: float


class GrantedObjects:
    """Transfers the objects of an S3 store by signed URLs. See ObjectStore for the methods and their errors."""

    def __init__(
        self, client: StoreClient, requests: "Requests", uri: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Asks for no permission yet.

        Args:
            client: Asks the leaderboard.
            requests: Sends the requests to the store.
            uri: URI of the store, for messages.
            clock: Monotonic clock in seconds.
        """
        self._client, self._requests, self._uri, self._clock = client, requests, uri, clock
        self._lock = threading.Lock()
        self._uploads: dict[str, _Held] = {}
        self._reads: dict[str, _Held] = {}
        self._manifest_of: dict[str, str] = {}
        self._own: set[str] = set()

    def announce(self, sizes: Mapping[str, int]) -> None:
        """Asks for permission to put the objects."""
        names = list(sizes)
        for begin in range(0, len(names), MOST_FILES):
            files = [pb.StoredFile(digest=name, size_bytes=sizes[name]) for name in names[begin : begin + MOST_FILES]]
            asked = self._clock()
            answer = self._client.call("GrantUploads", pb.GrantUploadsRequest, files=files)
            granted = {upload.digest: UrlGrant(upload.url, dict(upload.headers)) for upload in answer.uploads}
            self._hold(self._uploads, granted, asked, answer.lifetime.seconds)

    def put_object(self, data: bytes, name: str = "") -> str:
        """Sends the bytes to the store, which refuses them if the object exists; its age is reset then."""
        name = name or digest(data)
        try:
            self._put(name, data)
        except Aborted:
            try:
                self._client.call("RenewObjects", pb.RenewObjectsRequest, digests=[name])
            except NotFound:
                self._put(name, data)  # it was deleted in between
        with self._lock:
            self._own.add(name)
        return name

    def _put(self, name: str, data: bytes) -> None:
        held = self._take_upload(name)
        if held is None:
            self.announce({name: len(data)})
            held = self._take_upload(name)
        if held is None:
            raise PermissionDenied(f"object {name} in {self._uri}: the leaderboard granted no upload")
        self._requests.put(held.grant, data, f"object {name}")

    def _take_upload(self, name: str) -> _Held | None:
        with self._lock:
            held = self._uploads.pop(name, None)
        return held if held and self._clock() < held.until_seconds else None

    def get_object(self, name: str, largest_bytes: int | None = None) -> bytes:
        """Reads an object and verifies it; parts can be read after their manifest."""
        check_digest(name)
        held = self._read_held(name)
        if held is None:
            self._ask_for_reads(name)
            held = self._read_held(name)
        if held is None:
            raise missing_object(name, self._uri)
        try:
            arrival = self._requests.get(held.grant, f"object {name}", largest_bytes)
        except PodraceError as error:
            # The store may refuse the URL, for instance because the leaderboard has other keys since it was signed.
            with self._lock:
                self._reads.pop(name, None)
            if isinstance(error, NotFound):
                raise missing_object(name, self._uri) from error
            raise
        return verified(name, arrival, self._uri)

    def _read_held(self, name: str) -> _Held | None:
        with self._lock:
            held = self._reads.get(name)
        return held if held and self._clock() < held.until_seconds else None

    def _ask_for_reads(self, name: str) -> None:
        """Asks for permission to read a part of a manifest that was read before, or a manifest with its parts."""
        with self._lock:
            manifest_digest = self._manifest_of.get(name, name)
        parts = [] if manifest_digest == name else [name]
        asked = self._clock()
        answer = self._client.call("GrantReads", pb.GrantReadsRequest, manifest_digest=manifest_digest, digests=parts)
        granted = {read.digest: UrlGrant(read.url, {}) for read in answer.reads}
        self._hold(self._reads, granted, asked, answer.lifetime.seconds)
        with self._lock:
            self._manifest_of |= dict.fromkeys(granted, manifest_digest)
            if answer.own:
                self._own |= granted.keys()

    def _hold(
        self, held: dict[str, _Held], granted: Mapping[str, UrlGrant], asked: float, lifetime_seconds: float
    ) -> None:
        # A transfer that begins within half the lifetime also ends within it.
        with self._lock:
            held |= {name: _Held(grant, asked + lifetime_seconds / 2) for name, grant in granted.items()}

    def has_object(self, name: str) -> bool:
        """Whether the object was put, or listed in a manifest of the tournament that was read."""
        check_digest(name)
        with self._lock:
            return name in self._own

    def list_objects(self) -> Sequence[StoredObject]:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard lists objects")

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Is refused."""
        raise PermissionDenied(f"object {name} in {self._uri}: only the leaderboard deletes objects")


class GrantedStore:
    """The checkpoint store of one assignment. See CheckpointStore for the methods and their errors."""

    def __init__(self, client: StoreClient, objects: ObjectStore, uri: str, concurrency: int = TRANSFERS) -> None:
        """Makes no call yet.

        Args:
            client: Asks the leaderboard.
            objects: Transfers objects.
            uri: URI of the store, for messages.
            concurrency: Number of objects to put at the same time.
        """
        self._client, self._objects, self._uri, self._concurrency = client, objects, uri, concurrency
        self.announce, self.put_object, self.get_object = objects.announce, objects.put_object, objects.get_object
        self.has_object = objects.has_object

    @property
    def uri(self) -> str:
        """The URI of the store."""
        return self._uri

    @property
    def concurrency(self) -> int:
        """Number of objects to put at the same time."""
        return self._concurrency

    def within(self, tournament_id: str, *also_read: str) -> "GrantedStore":
        """Returns this store, which is that of one tournament; the leaderboard knows what else may be read.

        Raises:
            InvalidArgument: It is that of another tournament.
        """
        if tournament_id != self._client.claim.tournament_id:
            raise InvalidArgument(
                f"{self._uri}: access is granted for tournament {self._client.claim.tournament_id!r}, not for"
                f" {tournament_id!r}"
            )
        return self

    def list_objects(self) -> Sequence[StoredObject]:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard lists objects")

    def delete_object(self, name: str, minimum_age_seconds: float) -> bool:
        """Is refused."""
        raise PermissionDenied(f"object {name} in {self._uri}: only the leaderboard deletes objects")

    def read_pointer(self, agent_id: str) -> tuple[Pointer, str] | None:
        """Asks the leaderboard for the pointer of the agent that is trained."""
        self._check_agent(agent_id)
        answer = self._client.call("GetPointer", pb.GetPointerRequest)
        return (answer.pointer, answer.etag) if answer.HasField("pointer") else None

    def swap_pointer(self, agent_id: str, pointer: Pointer, etag: str | None) -> None:
        """Asks the leaderboard to replace the pointer of the agent that is trained."""
        self._check_agent(agent_id)
        self._client.call("SwapPointer", pb.SwapPointerRequest, pointer=pointer, etag=etag or "")

    def delete_pointer(self, agent_id: str) -> None:
        """Is refused."""
        raise PermissionDenied(f"pointer of {agent_id} in {self._uri}: only the leaderboard deletes pointers")

    def delete_tournament(self, tournament_id: str) -> int:
        """Is refused."""
        raise PermissionDenied(f"{tournament_id} in {self._uri}: only the leaderboard deletes tournaments")

    def remove_abandoned(self) -> int:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard removes unfinished writes")

    def list_pointers(self) -> Iterator[Pointer]:
        """Is refused."""
        raise PermissionDenied(f"{self._uri}: only the leaderboard lists pointers")

    def _check_agent(self, agent_id: str) -> None:
        if agent_id != self._client.claim.agent_id:
            raise PermissionDenied(
                f"pointer of agent {agent_id} in {self._uri}: access is granted for agent {self._client.claim.agent_id}"
            )
