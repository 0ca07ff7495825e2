"""Fetches checkpoints through CheckpointService, with every digest compared; needs no access to the checkpoint store.

async with CheckpointFetcher(tournament.leaderboard_address, tournament.tournament_id) as fetcher:
    fetched = await fetcher.fetch(manifest_digest)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.access.token_file import operator_token
from podrace.checkpoint.v1 import delivery_pb2 as pb
from podrace.checkpoint.v1 import delivery_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.manifest import manifest_from_bytes
from podrace.digests import digest
from podrace.errors import BAD_DIGEST, DataLoss, ResourceExhausted

QUICK_SECONDS = 10.0
STREAM_SECONDS = 600.0
LARGEST_PART_BYTES = 2**30
"""A larger part is not read into memory."""


@dataclass(frozen=True)
class FetchedCheckpoint:
    """A checkpoint whose bytes have the digests that name them."""

    manifest_digest: str
    manifest_json: bytes
    """The bytes of the manifest."""
    manifest: Manifest
    parts: Mapping[str, bytes]
    """Contents of the parts by name."""


class CheckpointFetcher:
    """Reads checkpoints of one tournament from its leaderboard; an asynchronous context manager."""

    def __init__(self, address: str, tournament_id: str, token: TokenSource | None = None) -> None:
        """Connects with the first call.

        Args:
            address: Address of the leaderboard.
            tournament_id: The tournament.
            token: What `Client.token_for` returns for this address; None: that of this process.
        """
        self._tournament_id = tournament_id
        self._channel = rpc.connect(address, pb.DESCRIPTOR, token=token or operator_token(address))
        self._stub: Any = pb_grpc.CheckpointServiceStub(self._channel)

    async def __aenter__(self) -> "CheckpointFetcher":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def fetch(self, manifest_digest: str, names: Collection[str] | None = None) -> FetchedCheckpoint:
        """Returns a checkpoint with the parts of its policies.

        Args:
            manifest_digest: Digest of its manifest.
            names: Names of the parts to read; None: those of its policies.

        Raises:
            NotFound: The tournament has no such checkpoint, or a part is not kept any longer.
            DataLoss: Bytes have another digest than their name (BAD_DIGEST).
            PodraceError: As the contract states.
        """
        manifest_json = await self.read(manifest_digest, manifest_digest)
        listed = await self.list_parts(manifest_digest, every_part=names is not None)
        wanted = [part for part in listed if names is None or part.name in names]
        parts = {part.name: await self.read(manifest_digest, part.digest) for part in wanted}
        return FetchedCheckpoint(manifest_digest, manifest_json, manifest_from_bytes(manifest_json), parts)

    async def list_parts(self, manifest_digest: str, *, every_part: bool = False) -> list[Part]:
        """Returns the parts of a checkpoint: those of its policies, or every one; raises as `fetch`."""
        request = pb.ListPartsRequest(
            tournament_id=self._tournament_id, manifest_digest=manifest_digest, all_parts=every_part
        )
        found: list[Part] = []
        while True:
            page = await rpc.call(self._stub.ListParts, request, deadline_seconds=QUICK_SECONDS)
            found += [entry.part for entry in page.parts]
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    async def read(self, manifest_digest: str, wanted_digest: str) -> bytes:
        """Returns the bytes of a part, or of the manifest itself; raises as `fetch`."""
        request = pb.ReadPartRequest(
            tournament_id=self._tournament_id, manifest_digest=manifest_digest, digest=wanted_digest
        )
        data = bytearray()
        async for chunk in rpc.stream(self._stub.ReadPart, request, deadline_seconds=STREAM_SECONDS):
            if chunk.size_bytes > LARGEST_PART_BYTES:
                raise ResourceExhausted(f"part {wanted_digest} has {chunk.size_bytes} bytes: too many for this client")
            if chunk.offset != len(data) or digest(chunk.data) != chunk.digest:
                raise _damaged(wanted_digest, "a chunk is")
            data += chunk.data
        if digest(bytes(data)) != wanted_digest:
            raise _damaged(wanted_digest, f"its {len(data)} bytes are")
        return bytes(data)


def _damaged(name: str, what: str) -> DataLoss:
    return DataLoss(f"part {name}: {what} damaged on the way; fetch it again", reason=BAD_DIGEST)
