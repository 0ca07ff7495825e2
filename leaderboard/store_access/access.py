"""Answers requests of pods for access to the checkpoint store.

Every request names an agent, or a tournament, and the lease epoch of the assignment. The leaderboard knows the agents,
and the pointer of an agent knows its epoch.

The signature of an upload covers digest, size and the condition that the object does not exist. That is why URLs are
signed even if the server could issue temporary credentials: a policy of such credentials names folders, but it neither
binds the bytes to the digest nor prevents the replacement of an object.
"""

import asyncio
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from leaderboard.checkpoints.lookup import find_manifest
from leaderboard.store import records
from leaderboard.store_access.pointer_changes import check_change, check_manifest
from podrace.checkpoint.v1 import store_pb2 as pb
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.publish import STALE_EPOCH, read_manifest
from podrace.checkpoint_store.store import (
    LARGEST_UPLOAD_BYTES,
    CheckpointStore,
    GrantingStore,
    check_digest,
)
from podrace.database import Database, Transaction
from podrace.errors import (
    AGENT_UNKNOWN,
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NamedResource,
    NotFound,
    missing_object,
)
from podrace.specification.ancestor import tournament_of

LIFETIME_SECONDS = 3600.0
"""How long a URL can be used."""
MOST_FILES = 1000
"""Most objects of one request."""
MOST_READS = 4000
"""Most URLs of one answer: it must fit in a message."""


class StoreAccess:
    """Swaps pointers for pods and grants them transfers of single objects."""

    def __init__(self, state: Database, store: CheckpointStore, *, renew_after_seconds: float) -> None:
        """Prepares to answer.

        Args:
            state: Database of the leaderboard.
            store: The checkpoint store as a whole.
            renew_after_seconds: Age from which the age of an object that a pod needs again is reset.
        """
        self._state, self._store, self._renew_after_seconds = state, store, renew_after_seconds
        self._epochs: dict[str, int] = {}
        self._ancestors: dict[str, str] = {}

    def forget(self, tournament_id: str) -> None:
        """Forgets a tournament that was deleted, and its agents."""
        self._ancestors.pop(tournament_id, None)
        for agent_id in [name for name in self._epochs if tournament_of(name) == tournament_id]:
            del self._epochs[agent_id]

    async def get_pointer(self, request: pb.GetPointerRequest) -> pb.GetPointerResponse:
        """Returns the pointer of an agent.

        Raises:
            NotFound: The agent is unknown.
            FailedPrecondition: A higher epoch holds it (STALE_EPOCH).
        """
        await self._check_agent(request.tournament_id, request.agent_id)
        found = await asyncio.to_thread(self._store.read_pointer, request.agent_id)
        if found is None:
            return pb.GetPointerResponse()
        self._check_epoch(request.agent_id, request.lease_epoch, found[0].lease_epoch)
        return pb.GetPointerResponse(pointer=found[0], etag=found[1])

    async def swap_pointer(self, request: pb.SwapPointerRequest) -> pb.SwapPointerResponse:
        """Replaces the pointer of an agent by one that claims it, or that publishes a manifest.

        Raises:
            Aborted: The pointer was changed by another process.
            NotFound: The agent is unknown, or the manifest is not in the folder of its tournament.
            FailedPrecondition: A higher epoch holds it (STALE_EPOCH), or it was not claimed.
            InvalidArgument: The pointer, or its manifest, is not one that the pod may publish.
        """
        await self._check_agent(request.tournament_id, request.agent_id)
        await asyncio.to_thread(self._swap, request)
        self._epochs[request.agent_id] = request.lease_epoch
        return pb.SwapPointerResponse()

    def _swap(self, request: pb.SwapPointerRequest) -> None:
        agent_id, wanted, own = request.agent_id, request.pointer, self._store.within(request.tournament_id)
        present, etag = self._store.read_pointer(agent_id) or (Pointer(agent_id=agent_id), None)
        check_change(present, wanted, request.lease_epoch)
        if etag != (request.etag or None):
            raise Aborted(f"pointer of agent {agent_id} was changed by another process; read it again")
        if wanted.manifest_digest != present.manifest_digest:
            check_digest(wanted.manifest_digest)
            manifest = read_manifest(own, wanted.manifest_digest)
            check_manifest(manifest, wanted.manifest_digest, tournament_id=request.tournament_id, pointer=wanted)
        self._store.swap_pointer(agent_id, wanted, etag)

    async def grant_uploads(self, request: pb.GrantUploadsRequest) -> pb.GrantUploadsResponse:
        """Signs a URL for each object.

        Raises:
            NotFound: The agent is unknown.
            FailedPrecondition: A higher epoch holds it (STALE_EPOCH), it was not claimed, or the store is a folder.
            InvalidArgument: An object has no digest, or is too large; or there are too many.
        """
        store = self._granting(request.tournament_id)
        await self._check_held(request)
        _check_count(len(request.files))
        # In a thread, because it takes long enough to delay other calls.
        uploads = await asyncio.to_thread(lambda: [_upload(store, file) for file in request.files])
        return pb.GrantUploadsResponse(uploads=uploads, lifetime=_lifetime())

    async def grant_reads(self, request: pb.GrantReadsRequest) -> pb.GrantReadsResponse:
        """Signs a URL for a manifest and each of its parts.

        Raises:
            NotFound: The tournament or the agent is unknown, or it may not read the manifest.
            DataLoss: The manifest is damaged (BAD_DIGEST).
            FailedPrecondition: The store is a folder.
        """
        self._granting(request.tournament_id)
        if request.agent_id:
            await self._check_agent(request.tournament_id, request.agent_id)
        ancestor = await self._ancestor_of(request.tournament_id)
        readable = [one for one in (request.tournament_id, ancestor) if one]
        folder, reads = await asyncio.to_thread(self._reads, request, readable)
        return pb.GrantReadsResponse(reads=reads, lifetime=_lifetime(), own=folder == request.tournament_id)

    def _reads(self, request: pb.GrantReadsRequest, readable: Sequence[str]) -> tuple[str, list[pb.Read]]:
        """Returns the folder of a manifest, and the signed URLs."""
        found, requested = find_manifest(self._store, readable, request.manifest_digest), set(request.digests)
        listed = dict.fromkeys((request.manifest_digest, *(part.digest for part in found.manifest.parts)))
        wanted = [name for name in listed if not requested or name in requested]
        store = self._granting(found.folder)
        reads = [pb.Read(digest=name, url=store.grant_read(name, LIFETIME_SECONDS).url) for name in wanted[:MOST_READS]]
        return found.folder, reads

    async def renew_objects(self, request: pb.RenewObjectsRequest) -> pb.RenewObjectsResponse:
        """Resets the age of objects that a pod needs again, so that they are kept until it has published.

        Raises:
            NotFound: The agent is unknown, or an object does not exist.
            DataLoss: An object had to be read to reset its age, and is damaged (BAD_DIGEST).
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH), or the store is a folder.
        """
        store = self._granting(request.tournament_id)
        await self._check_held(request)
        _check_count(len(request.digests))
        for name in request.digests:
            check_digest(name)
            if not await asyncio.to_thread(store.renew_object, name, self._renew_after_seconds):
                raise missing_object(name, self._store.uri)
        return pb.RenewObjectsResponse()

    def _granting(self, tournament_id: str) -> GrantingStore:
        store = self._store.within(tournament_id)
        if not isinstance(store, GrantingStore):
            raise FailedPrecondition(
                f"checkpoint store {self._store.uri} cannot grant access to single objects: pods access the folder"
            )
        return store

    async def _check_agent(self, tournament_id: str, agent_id: str) -> None:
        agent = (await self._state.transact(records.get_generation, agent_id)).agent
        if agent.tournament_id != tournament_id:
            # As for an agent that does not exist.
            named = NamedResource("agent", agent_id)
            raise NotFound(f"agent {agent_id!r} was never generated here", reason=AGENT_UNKNOWN, resource=named)

    async def _check_held(self, request: pb.GrantUploadsRequest | pb.RenewObjectsRequest) -> None:
        """Checks that the pod holds the agent; the epoch of an agent that was claimed here is known."""
        agent_id, lease_epoch = request.agent_id, request.lease_epoch
        if self._epochs.get(agent_id) != lease_epoch or tournament_of(agent_id) != request.tournament_id:
            await self._check_agent(request.tournament_id, agent_id)
            found = await asyncio.to_thread(self._store.read_pointer, agent_id)
            self._check_epoch(agent_id, lease_epoch, found[0].lease_epoch if found else 0)
            if found is None or found[0].lease_epoch < lease_epoch:
                raise FailedPrecondition(f"agent {agent_id}: is not claimed for epoch {lease_epoch}; claim it first")

    def _check_epoch(self, agent_id: str, lease_epoch: int, present_epoch: int) -> None:
        self._epochs[agent_id] = present_epoch
        if present_epoch > lease_epoch:
            raise FailedPrecondition(
                f"agent {agent_id} was assigned again: epoch {lease_epoch} is stale, epoch {present_epoch} holds it;"
                " stop",
                reason=STALE_EPOCH,
            )

    async def _ancestor_of(self, tournament_id: str) -> str:
        """Returns the tournament whose agent a tournament starts from; empty if there is none. It never changes."""
        if tournament_id not in self._ancestors:
            self._ancestors[tournament_id] = await self._state.transact(_ancestor, tournament_id)
        return self._ancestors[tournament_id]


def _ancestor(transaction: Transaction, tournament_id: str) -> str:
    return tournament_of(records.get_spec(transaction, tournament_id).evolution.ancestor_agent_id)


def _upload(store: GrantingStore, file: pb.StoredFile) -> pb.Upload:
    if file.size_bytes > LARGEST_UPLOAD_BYTES:
        raise InvalidArgument(
            f"object {file.digest} has {file.size_bytes} bytes: granted uploads have at most"
            f' {LARGEST_UPLOAD_BYTES}; set store_access = "direct" for larger ones'
        )
    check_digest(file.digest)
    grant = store.grant_upload(file.digest, file.size_bytes, LIFETIME_SECONDS)
    return pb.Upload(digest=file.digest, url=grant.url, headers=grant.headers)


def _check_count(count: int) -> None:
    if count > MOST_FILES:
        raise InvalidArgument(f"{count} objects in one request: at most {MOST_FILES}")


def _lifetime() -> Duration:
    return Duration(seconds=round(LIFETIME_SECONDS))
