"""Answers requests of the orchestrator for access to the backups of its database in the checkpoint store.

The orchestrator has no credentials of the store. It reaches the pointers and objects of its own backups only: it can
neither see checkpoints nor the backups of the leaderboard, and replaces no object that is intact.
"""

import asyncio
import math
import re
from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from leaderboard.store_access.access import LIFETIME_SECONDS
from podrace.backup.copies import place_of
from podrace.checkpoint.v1 import store_pb2 as pb
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import LARGEST_UPLOAD_BYTES, CheckpointStore, GrantingStore, check_digest
from podrace.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound

SERVICE = "orchestrator"


class BackupAccess:
    """Reads and swaps pointers to backups, and grants transfers of their objects."""

    def __init__(self, store: CheckpointStore, name: str, *, renew_after_seconds: float) -> None:
        """Prepares to answer.

        Args:
            store: The checkpoint store as a whole.
            name: `backup.name` of the leaderboard, which is also that of its orchestrator.
            renew_after_seconds: Age from which the age of an object that is needed again is reset.
        """
        self._store, self._name, self._renew_after_seconds = store, name, renew_after_seconds
        self._place = place_of(name, SERVICE)
        self._own = re.compile(rf"{re.escape(self._place)}-a[0-9]{{1,9}}")

    async def list_pointers(self, request: pb.ListBackupPointersRequest) -> pb.ListBackupPointersResponse:
        """Returns the requested pointers with their tags, or all pointers without.

        Raises:
            InvalidArgument: A pointer does not belong to these backups, or they have another name.
        """
        self._check(request.name, request.pointer_ids)
        if not request.pointer_ids:
            return pb.ListBackupPointersResponse(pointers=await asyncio.to_thread(self._all))
        wanted = list(request.pointer_ids)
        read = await asyncio.to_thread(lambda: [self._store.read_pointer(pointer_id) for pointer_id in wanted])
        found = [one for one in read if one]
        return pb.ListBackupPointersResponse(
            pointers=[pointer for pointer, _ in found], etags=[etag for _, etag in found]
        )

    def _all(self) -> list[Pointer]:
        return [pointer for pointer in self._store.list_pointers() if self._own.fullmatch(pointer.agent_id)]

    async def swap_pointer(self, request: pb.SwapBackupPointerRequest) -> pb.SwapBackupPointerResponse:
        """Replaces or deletes a pointer.

        Raises:
            Aborted: The pointer was changed by another process.
            NotFound: The manifest is not in the folder of these backups.
            InvalidArgument: As list_pointers, or the manifest is not that of a backup.
        """
        self._check(request.name, [request.pointer_id])
        await asyncio.to_thread(self._swap, request)
        return pb.SwapBackupPointerResponse()

    def _swap(self, request: pb.SwapBackupPointerRequest) -> None:
        pointer_id, wanted = request.pointer_id, request.pointer
        if not request.HasField("pointer"):
            self._store.delete_pointer(pointer_id)
            return
        if wanted.agent_id != pointer_id:
            raise InvalidArgument(f"pointer.agent_id = {wanted.agent_id!r}: expected {pointer_id!r}")
        if wanted.manifest_digest:
            check_digest(wanted.manifest_digest)
            manifest = read_manifest(self._store.within(self._place), wanted.manifest_digest)
            if manifest.tournament_id != self._place:
                raise InvalidArgument(f"manifest {wanted.manifest_digest} is not that of a backup of {self._place}")
        self._store.swap_pointer(pointer_id, wanted, request.etag or None)

    async def grant_transfers(self, request: pb.GrantBackupTransfersRequest) -> pb.GrantBackupTransfersResponse:
        """Signs a URL for each object, unless it is to be stored and exists. A damaged one is deleted first.

        Raises:
            FailedPrecondition: The store is a folder.
            InvalidArgument: As list_pointers, or an object is too large.
            ObjectTooLarge: An object exists and is larger than the request states.
        """
        self._check(request.name, ())
        store = self._store.within(self._place)
        if not isinstance(store, GrantingStore):
            raise FailedPrecondition(f"checkpoint store {self._store.uri} cannot grant access: open the folder")
        uploads = []
        for file in request.files:
            check_digest(file.digest)
            if file.size_bytes > LARGEST_UPLOAD_BYTES:
                raise InvalidArgument(f"object {file.digest} has {file.size_bytes} bytes; at most 5 GiB are granted")
            if not await asyncio.to_thread(self._keep_intact, store, file):
                grant = store.grant_upload(file.digest, file.size_bytes, LIFETIME_SECONDS)
                uploads.append(pb.Upload(digest=file.digest, url=grant.url, headers=grant.headers))
        reads = [pb.Read(digest=name, url=store.grant_read(name, LIFETIME_SECONDS).url) for name in request.digests]
        lifetime = Duration(seconds=round(LIFETIME_SECONDS))
        return pb.GrantBackupTransfersResponse(uploads=uploads, reads=reads, lifetime=lifetime)

    def _keep_intact(self, store: GrantingStore, file: pb.StoredFile) -> bool:
        """Resets the age of an object that exists; returns False if it is missing, or was damaged and is deleted."""
        name = file.digest
        try:
            if not store.renew_object(name, self._renew_after_seconds):
                return False
            store.get_object(name, file.size_bytes)
        except NotFound:
            return False
        except DataLoss:
            store.delete_object(name, -math.inf)
            return False
        return True

    def _check(self, name: str, pointer_ids: Iterable[str]) -> None:
        if name != self._name:
            raise InvalidArgument(
                f"name = {name!r}: the leaderboard has backup.name = {self._name!r}; set the same at both services"
            )
        for pointer_id in pointer_ids:
            if not self._own.fullmatch(pointer_id):
                raise InvalidArgument(f"pointer {pointer_id!r} does not belong to the backups {self._place}")
