"""Reads submitted checkpoints from the store in separate threads, within a deadline.

A store may be slow, or a file system may not answer at all. The threads that wait for it are few and do nothing else,
so the event loop and all calls that need no store continue. When all of them wait, further submissions fail at their
deadline, and their pods submit again.

The threads share a budget of bytes, of one policy of the largest size. Small policies are read at the same time, and a
large one waits for the others, and they for it. So the memory that is needed does not depend on how many pods submit.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from leaderboard.checkpoints.manifest_check import POLICY_PART, TEST_VECTORS_PART
from leaderboard.checkpoints.policy_shape import PolicyShape, check_test_vectors, read_shape
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.manifest import LARGEST_MANIFEST_BYTES, manifest_from_bytes
from podrace.checkpoint_store.publish import advanced
from podrace.checkpoint_store.store import CheckpointStore, ObjectTooLarge
from podrace.errors import BAD_CHECKPOINT, InvalidArgument, NamedResource, NotFound, ResourceExhausted, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import SubmitCandidateRequest, SubmitSnapshotRequest
from podrace.specification.ancestor import tournament_of

READ_SECONDS = 8.0
"""Time to read a manifest and its policy; pods allow 30 s for a submission."""
THREADS = 4
MOST_WAITING = 256
"""Submissions that wait for a thread, at most."""
LARGEST_POLICY_BYTES = 256 * 2**20
"""A policy is read into memory: 64 million parameters. Also the largest sum of the files that are being read."""

_READERS = {POLICY_PART: read_shape, TEST_VECTORS_PART: check_test_vectors}
"""Returns the shapes of the tensors of a part, by its name. Policy servers and clients read these parts as well."""

SubmitRequest = SubmitCandidateRequest | SubmitSnapshotRequest


@dataclass(frozen=True)
class SubmittedCheckpoint:
    """A checkpoint as the store has it, its digests verified."""

    manifest: Manifest
    shape: PolicyShape | None
    """Shapes of the tensors of its policy; None if it has no part `policy`, or more than one."""


class ByteBudget:
    """Limits the sum of the bytes that several threads hold.

    with budget.hold(len(data)): ...
    """

    def __init__(self, total_bytes: int) -> None:
        self._free_bytes, self._changed = total_bytes, threading.Condition()
        self._turn = threading.Lock()

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Waits until so many bytes are free. Threads take turns, so that small requests do not starve a large one."""
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._free_bytes >= count)
            self._free_bytes -= count
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += count
                self._changed.notify_all()


class CheckpointReader:
    """Reads submitted checkpoints.

    read = await reader.read(request)
    reader.close()
    """

    def __init__(self, store: CheckpointStore, *, deadline_seconds: float = READ_SECONDS) -> None:
        self._store, self._deadline_seconds = store, deadline_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="checkpoint-reader")
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._budget = ByteBudget(LARGEST_POLICY_BYTES)

    async def read(self, request: SubmitRequest) -> SubmittedCheckpoint:
        """Reads a submitted checkpoint, after checking in the store that its pod still holds the agent.

        Raises:
            InvalidArgument: The policy or its test vectors are malformed, or a file is too large (BAD_CHECKPOINT).
            NotFound: Nothing was published, or the manifest or one of these parts is not in the store.
            DataLoss: A digest is wrong (BAD_DIGEST).
            FailedPrecondition: The agent has been assigned to another pod since (STALE_EPOCH).
            Unavailable: The store does not answer in time.
            ResourceExhausted: Too many submissions wait for the store.
        """
        if not self._waiting.acquire(blocking=False):
            raise ResourceExhausted(f"{MOST_WAITING} submissions wait for {self._store.uri}; submit again later")
        work = self._threads.submit(read_submitted, self._store, request, self._budget)
        work.add_done_callback(lambda _: self._waiting.release())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(work), self._deadline_seconds)
        except TimeoutError:
            raise Unavailable(
                f"checkpoint {request.checkpoint.manifest_digest[:12]} could not be read from {self._store.uri} within"
                f" {self._deadline_seconds:g} s; submit it again"
            ) from None

    def close(self) -> None:
        """Drops the submissions that wait for a thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def read_submitted(store: CheckpointStore, request: SubmitRequest, budget: ByteBudget) -> SubmittedCheckpoint:
    """As CheckpointReader.read, without a deadline. Blocks."""
    agent_id, manifest_digest = request.checkpoint.agent_id, request.checkpoint.manifest_digest
    store = store.within(tournament_of(agent_id))
    found = store.read_pointer(agent_id)
    if found is None:
        raise NotFound(
            f"agent {agent_id}: no checkpoint was published in {store.uri}; publish before you submit",
            resource=NamedResource("checkpoint", manifest_digest),
        )
    # A pod that may publish may submit: only the epoch in the agent's pointer decides.
    advanced(found[0], request.lease_epoch, manifest_digest)
    manifest = manifest_from_bytes(_bounded(store, manifest_digest, LARGEST_MANIFEST_BYTES, "manifest"))
    shapes = {name: _read_part(store, manifest, manifest_digest, name, budget) for name in _READERS}
    return SubmittedCheckpoint(manifest, shapes[POLICY_PART])


def _read_part(
    store: CheckpointStore, manifest: Manifest, manifest_digest: str, name: str, budget: ByteBudget
) -> PolicyShape | None:
    """Reads a part, unless the manifest does not list it or lists it more than once, which is refused later."""
    parts = [part for part in manifest.parts if part.name == name]
    if len(parts) != 1:
        return None
    size_bytes = parts[0].size_bytes
    if size_bytes > LARGEST_POLICY_BYTES:
        raise _refused(manifest_digest, name, f"has {size_bytes} bytes; at most {LARGEST_POLICY_BYTES} are read")
    with budget.hold(size_bytes):
        return _shape(store, parts[0], manifest_digest)


def _shape(store: CheckpointStore, part: Part, manifest_digest: str) -> PolicyShape:
    """Reads the shapes of a part, of which no more bytes are read than the manifest states."""
    data = _bounded(store, part.digest, part.size_bytes, part.name)
    if len(data) != part.size_bytes:
        raise _refused(manifest_digest, part.name, f"has {len(data)} bytes, the manifest states {part.size_bytes}")
    try:
        return _READERS[part.name](data)
    except ValueError as error:
        raise _refused(manifest_digest, part.name, str(error)) from None


def _refused(manifest_digest: str, part: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"manifest {manifest_digest}: parts[{part!r}]: {problem}", reason=BAD_CHECKPOINT)


def _bounded(store: CheckpointStore, name: str, largest_bytes: int, what: str) -> bytes:
    """Returns an object, unless it is larger than allowed: nothing of it is read then."""
    try:
        return store.get_object(name, largest_bytes)
    except ObjectTooLarge as error:
        raise InvalidArgument(f"{what} {name}: {error.message}", reason=BAD_CHECKPOINT) from None
