"""Reads manifests and parts of checkpoints for callers without access to the checkpoint store, within limits.

The store is read in threads that do nothing else, so a slow store delays no other call. A stream holds the whole part
in memory, because no byte is sent before the digest of all of them was compared. That is why the number of streams and
the bytes that they hold together are limited.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from leaderboard.checkpoints.lookup import StoredManifest, find_manifest
from leaderboard.delivery import pages
from podrace.access.ownership import Ownership
from podrace.checkpoint.v1 import delivery_pb2 as pb
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.publish import read_part
from podrace.checkpoint_store.store import CheckpointStore, GrantingStore
from podrace.digests import digest
from podrace.errors import NamedResource, NotFound, PermissionDenied, ResourceExhausted, Unavailable

POLICY_PARTS = frozenset({"policy", "test_vectors"})
"""Names of the parts that are needed to act, and nothing else."""
CHUNK_BYTES = 2**20
URL_SECONDS = 300.0
"""How long a URL can be used."""
LARGEST_TRACES_BYTES = 2**20

Result = TypeVar("Result")


@dataclass(frozen=True)
class DeliveryLimits:
    """What callers may use together."""

    threads: int = 4
    """Threads that read the store."""
    waiting: int = 256
    """Most calls that wait for a thread or use one."""
    streams: int = 16
    """Most streams at the same time."""
    held_bytes: int = 2**30
    """Most bytes of the parts of these streams together."""
    owner_streams: int = 4
    """Most streams of one user or viewer, so that one who reads slowly leaves some to the others."""
    owner_bytes: int = 2**29
    """Most bytes of the parts of these streams together, unless it is only one stream."""
    read_seconds: float = 8.0
    """Time to read a manifest."""


@dataclass(frozen=True)
class _Stream:
    """An open stream."""

    owner: Ownership | None
    """The user or viewer that reads it; None: a caller without limits of its own."""
    size_bytes: int
    """Bytes of its part."""


class CheckpointDelivery:
    """Delivers checkpoints.

    manifest = await delivery.get_manifest(request)
    async with contextlib.aclosing(delivery.chunks(request, every_part=False)) as chunks:
        async for chunk in chunks:
            ...
    delivery.close()
    """

    def __init__(self, store: CheckpointStore, limits: DeliveryLimits | None = None) -> None:
        """Prepares to read.

        Args:
            store: The checkpoint store as a whole.
            limits: What callers may use together; None: the defaults.
        """
        self._store, self._limits = store, limits or DeliveryLimits()
        self._threads = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="checkpoint-delivery")
        self._waiting = threading.BoundedSemaphore(self._limits.waiting)
        self._streams: list[_Stream] = []

    def close(self) -> None:
        """Drops the calls that wait for a thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def get_manifest(self, request: pb.GetManifestRequest) -> pb.GetManifestResponse:
        """Returns a manifest without its parts.

        Raises:
            NotFound: The tournament has no such manifest.
            DataLoss: It is damaged (BAD_DIGEST).
            ResourceExhausted: Too many calls wait for the store.
            Unavailable: The store does not answer in time.
        """
        found = await self._find(request.tournament_id, request.manifest_digest)
        shown = Manifest()
        shown.CopyFrom(found.manifest)
        del shown.parts[:]
        if sum(trace.ByteSize() for trace in shown.evaluation.traces.values()) > LARGEST_TRACES_BYTES:
            shown.evaluation.traces.clear()
        return pb.GetManifestResponse(manifest=shown, size_bytes=found.size_bytes)

    async def list_parts(self, request: pb.ListPartsRequest, *, every_part: bool) -> pb.ListPartsResponse:
        """Lists parts, with a URL for each if the store can sign one.

        Args:
            request: The request.
            every_part: Whether the caller may read every part, and not only those of policies.

        Raises:
            PermissionDenied: Every part is requested, and the caller may not read them.
            InvalidArgument: The page token belongs to another list.
            PodraceError: As `get_manifest`.
        """
        if request.all_parts and not every_part:
            raise _denied("all_parts: the learner's state and replay memories")
        after, size = pages.page_of(request)
        found = await self._find(request.tournament_id, request.manifest_digest)
        listed = sorted(_parts(found.manifest, every_part=request.all_parts), key=lambda part: part.name)
        remaining = [part for part in listed if part.name > after]
        page = remaining[:size]
        response = pb.ListPartsResponse(parts=[pb.DeliveredPart(part=part) for part in page])
        if len(remaining) > size:
            response.next_page_token = pages.token_after(request, page[-1].name)
        store = self._store.within(found.folder)
        if isinstance(store, GrantingStore):
            response.lifetime.CopyFrom(Duration(seconds=round(URL_SECONDS)))
            for entry in response.parts:
                entry.url = store.grant_read(entry.part.digest, URL_SECONDS).url
        return response

    async def chunks(
        self, request: pb.ReadPartRequest, *, every_part: bool, owner: Ownership | None = None
    ) -> AsyncGenerator[pb.ReadPartResponse, None]:
        """Yields the bytes of a part, or of the manifest itself, from `offset` on.

        Args:
            request: The request.
            every_part: As for `list_parts`.
            owner: The caller, if it is a user or viewer, whose share of the streams is limited; otherwise None.

        Raises:
            PermissionDenied: The caller may not read the part.
            NotFound: The manifest does not list the part, or it is not in the store.
            ResourceExhausted: There are too many streams, of all callers or of this one, or the part is too large for
                the memory that is left.
            PodraceError: As `get_manifest`.
        """
        found = await self._find(request.tournament_id, request.manifest_digest)
        part = _wanted(found, request, every_part=every_part)
        with self._held(part, owner):
            data = await self._run(read_part, self._store.within(request.tournament_id), part)
            for offset in range(request.offset, len(data), CHUNK_BYTES):
                chunk = data[offset : offset + CHUNK_BYTES]
                yield pb.ReadPartResponse(
                    data=chunk, digest=await self._run(digest, chunk), offset=offset, size_bytes=len(data)
                )

    @contextlib.contextmanager
    def _held(self, part: Part, owner: Ownership | None) -> Iterator[None]:
        """Counts a stream and its bytes for the duration of the block; raises ResourceExhausted."""
        self._check_limits(part, owner)
        stream = _Stream(owner, part.size_bytes)
        self._streams.append(stream)
        try:
            yield
        finally:
            self._streams.remove(stream)

    def _check_limits(self, part: Part, owner: Ownership | None) -> None:
        limits, held_bytes = self._limits, sum(stream.size_bytes for stream in self._streams)
        if part.size_bytes > limits.held_bytes:
            raise ResourceExhausted(
                f"part {part.name!r} has {part.size_bytes} bytes, and at most {limits.held_bytes} are streamed: read it"
                " by its URL, or from the store itself"
            )
        if len(self._streams) >= limits.streams or held_bytes + part.size_bytes > limits.held_bytes:
            raise ResourceExhausted(
                f"{len(self._streams)} streams with {held_bytes} bytes are open, of at most {limits.streams} with"
                f" {limits.held_bytes} bytes; try again later, or use the URL of the part"
            )
        own = [stream.size_bytes for stream in self._streams if owner and stream.owner == owner]
        if owner and own and (len(own) >= limits.owner_streams or sum(own) + part.size_bytes > limits.owner_bytes):
            raise ResourceExhausted(
                f"{owner.display_name} has {len(own)} streams with {sum(own)} bytes open, of at most"
                f" {limits.owner_streams} with {limits.owner_bytes} bytes; end one of them, or use the URL of the part"
            )

    async def _find(self, tournament_id: str, manifest_digest: str) -> StoredManifest:
        try:
            async with asyncio.timeout(self._limits.read_seconds):
                return await self._run(find_manifest, self._store, [tournament_id], manifest_digest)
        except TimeoutError:
            raise Unavailable(
                f"manifest {manifest_digest[:12]} could not be read from {self._store.uri} within"
                f" {self._limits.read_seconds:g} s; try again"
            ) from None

    async def _run(self, work: Callable[..., Result], *arguments: object) -> Result:
        if not self._waiting.acquire(blocking=False):
            raise ResourceExhausted(f"{self._limits.waiting} calls wait for {self._store.uri}; try again later")
        future = self._threads.submit(work, *arguments)
        future.add_done_callback(lambda _: self._waiting.release())
        return await asyncio.wrap_future(future)


def _parts(manifest: Manifest, *, every_part: bool) -> list[Part]:
    return [part for part in manifest.parts if every_part or part.name in POLICY_PARTS]


def _wanted(found: StoredManifest, request: pb.ReadPartRequest, *, every_part: bool) -> Part:
    if request.digest == request.manifest_digest:
        return Part(name="manifest", digest=request.digest, size_bytes=found.size_bytes)
    # A part of a policy and another one may have the same bytes.
    listed = sorted(found.manifest.parts, key=lambda part: part.name not in POLICY_PARTS)
    part = next((part for part in listed if part.digest == request.digest), None)
    if part is None:
        named = NamedResource("part", request.digest)
        raise NotFound(f"manifest {request.manifest_digest} lists no part {request.digest}", resource=named)
    if part.name not in POLICY_PARTS and not every_part:
        raise _denied(f"part {part.name!r}")
    return part


def _denied(what: str) -> PermissionDenied:
    return PermissionDenied(
        f"{what}: only callers with the role user may read more than {' and '.join(sorted(POLICY_PARTS))}"
    )
