"""Claims agents, publishes their checkpoints and fetches them verified, on any store.

The steps of a pod that trains an agent:

    pointer = claim(store, agent_id, lease_epoch)            # a holder of a lower epoch can no longer publish
    latest = fetch_latest(store, agent_id)                   # or fetch(store, assignment.checkpoint.manifest_digest)
    while training:
        manifest_digest = publish(store, agent_id, lease_epoch, {"policy": ..., "learner": ...}, manifest)

Only the epoch in the pointer decides which pod may publish; no clock is read. Every step may be repeated after a lost
reply, and a process may die between any two steps: objects that no pointer refers to are garbage, not damage.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part, Pointer
from podrace.checkpoint_store.manifest import (
    FORMAT_VERSION,
    LARGEST_MANIFEST_BYTES,
    manifest_bytes,
    manifest_from_bytes,
)
from podrace.checkpoint_store.store import BAD_DIGEST as BAD_DIGEST
from podrace.checkpoint_store.store import CheckpointStore, ObjectTooLarge
from podrace.digests import digest
from podrace.errors import Aborted, DataLoss, FailedPrecondition, NotFound

Item = TypeVar("Item")
Result = TypeVar("Result")
STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"
AT_ONCE_BYTES = 4 * 2**20
"""Checkpoints below this total size are stored one file after the other: threads would cost more than they save."""
Found = tuple[Pointer, str | None]
"""An agent's pointer and the tag of its content; None: there is no pointer yet."""


@dataclass(frozen=True)
class LatestCheckpoint:
    """The newest checkpoint of an agent that could be verified."""

    manifest_digest: str
    """Digest of its manifest."""
    manifest: Manifest
    """Its manifest."""
    parts: dict[str, bytes]
    """Contents of its parts, by name."""
    damage: str
    """Why the newest checkpoint could not be read, if this is the previous one; otherwise empty."""


def claim(store: CheckpointStore, agent_id: str, lease_epoch: int) -> Pointer:
    """Makes a lease epoch the only one that may publish for an agent; the published manifest stays.

    Returns:
        The agent's pointer. The caller submits its manifest, if there is one, again: the previous holder may have died
        between publishing and submitting it.

    Raises:
        FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
    """
    return _swap(store, agent_id, _read(store, agent_id), lambda pointer: claimed(pointer, lease_epoch))


def publish(
    store: CheckpointStore,
    agent_id: str,
    lease_epoch: int,
    parts: Mapping[str, bytes],
    manifest: Manifest,
    *,
    stored: Collection[Part] = (),
) -> str:
    """Stores the parts, then the manifest, then advances the pointer; equal arguments may be repeated.

    Args:
        store: The store.
        agent_id: The agent, claimed for this epoch.
        lease_epoch: Epoch of the assignment.
        parts: Contents of the parts, by name.
        manifest: The manifest without format version, agent, epoch and parts, which are filled in here. The caller sets
            `previous_manifest_digest` (the checkpoint that this training started from) and `publish_time`.
        stored: Further parts that `store_part` has stored already, because they are too large to hold all at once.

    Returns:
        The digest of the manifest.

    Raises:
        FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH), or the agent was not claimed for this one.
        ResourceExhausted: The store is full; the previous checkpoint stays published.
    """
    found = _read(store, agent_id)
    _refuse_unclaimed(found[0], lease_epoch)  # before anything is stored
    listed = _parts_of(store, parts)
    complete = manifest_bytes(_complete(manifest, agent_id, lease_epoch, [*listed, *stored]))
    manifest_digest = digest(complete)
    store.announce({part.digest: part.size_bytes for part in listed} | {manifest_digest: len(complete)})
    _at_once(store, parts, lambda part: store.put_object(parts[part.name], part.digest), listed)
    # After the parts: a manifest in the store never lacks a part, even if no pointer refers to it.
    store.put_object(complete, manifest_digest)
    _swap(store, agent_id, found, lambda pointer: advanced(pointer, lease_epoch, manifest_digest))
    return manifest_digest


def store_part(store: CheckpointStore, name: str, data: bytes) -> Part:
    """Stores one part ahead of the manifest that will list it; raises ResourceExhausted if the store is full."""
    return Part(name=name, digest=store.put_object(data), size_bytes=len(data))


def _parts_of(store: CheckpointStore, parts: Mapping[str, bytes]) -> list[Part]:
    return _at_once(
        store, parts, lambda name: Part(name=name, digest=digest(parts[name]), size_bytes=len(parts[name])), parts
    )


def _at_once(
    store: CheckpointStore,
    parts: Mapping[str, bytes],
    work: Callable[[Item], Result],
    items: Collection[Item],
) -> list[Result]:
    """Works on each item, on several at the same time if that is faster for parts of this size."""
    threads = min(store.concurrency, len(items))
    if threads < 2 or sum(map(len, parts.values())) < AT_ONCE_BYTES:
        return [work(item) for item in items]
    # New threads for each publication, so that none exist when the process forks later.
    with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint") as pool:
        return list(pool.map(work, items))


def claimed(pointer: Pointer, lease_epoch: int) -> Pointer:
    """Returns an agent's pointer after an epoch has claimed it; raises as `claim` does."""
    _refuse_stale(pointer, lease_epoch)
    claimed_pointer = Pointer()
    claimed_pointer.CopyFrom(pointer)
    claimed_pointer.lease_epoch = lease_epoch
    return claimed_pointer


def advanced(pointer: Pointer, lease_epoch: int, manifest_digest: str) -> Pointer:
    """Returns an agent's pointer after an epoch has published a manifest; raises as `publish` does."""
    _refuse_unclaimed(pointer, lease_epoch)
    # A repeated publication finds its own manifest in the pointer, which must not become its own predecessor.
    repeated = pointer.manifest_digest == manifest_digest
    return Pointer(
        agent_id=pointer.agent_id,
        lease_epoch=lease_epoch,
        manifest_digest=manifest_digest,
        previous_manifest_digest=pointer.previous_manifest_digest if repeated else pointer.manifest_digest,
    )


def read_manifest(store: CheckpointStore, manifest_digest: str) -> Manifest:
    """Returns a verified manifest.

    Raises:
        DataLoss: The manifest is damaged, or larger than any manifest (BAD_DIGEST).
        NotFound: The manifest is not in the store.
        Unimplemented: The manifest has a later format than this build reads.
    """
    return manifest_from_bytes(_bounded(store, manifest_digest, LARGEST_MANIFEST_BYTES, "manifest"))


def read_part(store: CheckpointStore, part: Part) -> bytes:
    """Returns the verified bytes of a part; raises DataLoss (BAD_DIGEST) and NotFound."""
    data = _bounded(store, part.digest, part.size_bytes, f"part {part.name!r}")
    if len(data) != part.size_bytes:
        raise DataLoss(
            f"part {part.name!r} ({part.digest} in {store.uri}) has {len(data)} bytes, its manifest states"
            f" {part.size_bytes}",
            reason=BAD_DIGEST,
        )
    return data


def _bounded(store: CheckpointStore, name: str, largest_bytes: int, what: str) -> bytes:
    """Returns an object, unless it is larger: nothing of it is read then, because a pod may name any object."""
    try:
        return store.get_object(name, largest_bytes)
    except ObjectTooLarge as error:
        raise DataLoss(f"{what} in {store.uri}: {error.message}", reason=BAD_DIGEST) from None


def fetch(
    store: CheckpointStore, manifest_digest: str, *, without: str | None = None
) -> tuple[Manifest, dict[str, bytes]]:
    """Returns a checkpoint's manifest and the contents of its parts by name, all verified.

    Args:
        store: The store.
        manifest_digest: Digest of the manifest.
        without: Skips parts whose names begin with this; `read_part` reads them one by one.

    Raises:
        DataLoss: An object is damaged or has another size than the manifest states (BAD_DIGEST); the message names it.
        NotFound: An object is not in the store; the message names it.
        Unimplemented: The manifest has a later format than this build reads.
    """
    manifest = read_manifest(store, manifest_digest)
    wanted = [part for part in manifest.parts if without is None or not part.name.startswith(without)]
    return manifest, {part.name: read_part(store, part) for part in wanted}


def fetch_latest(store: CheckpointStore, agent_id: str, *, without: str | None = None) -> LatestCheckpoint | None:
    """Returns an agent's newest checkpoint, or the previous one if an object of the newest is damaged or missing.

    Args:
        store: The store.
        agent_id: The agent.
        without: As for `fetch`.

    Returns:
        None if no checkpoint of the agent was published.

    Raises:
        DataLoss: Neither can be read; the message names the object.
        NotFound: An object of the previous checkpoint is not in the store.
        Unimplemented: A manifest has a later format than this build reads.
    """
    pointer, _ = _read(store, agent_id)
    if not pointer.manifest_digest:
        return None
    try:
        return LatestCheckpoint(
            pointer.manifest_digest, *fetch(store, pointer.manifest_digest, without=without), damage=""
        )
    except (DataLoss, NotFound) as error:
        damage = error.message
    previous = pointer.previous_manifest_digest
    if not previous:
        raise DataLoss(f"agent {agent_id} has no previous checkpoint to fall back to: {damage}", reason=BAD_DIGEST)
    return LatestCheckpoint(previous, *fetch(store, previous, without=without), damage)


def _complete(manifest: Manifest, agent_id: str, lease_epoch: int, parts: Collection[Part]) -> Manifest:
    complete = Manifest()
    complete.CopyFrom(manifest)
    complete.format_version = FORMAT_VERSION
    complete.agent_id = agent_id
    complete.lease_epoch = lease_epoch
    del complete.parts[:]
    complete.parts.extend(sorted(parts, key=lambda part: part.name))
    return complete


def _refuse_unclaimed(pointer: Pointer, lease_epoch: int) -> None:
    _refuse_stale(pointer, lease_epoch)
    if pointer.lease_epoch < lease_epoch:
        raise FailedPrecondition(
            f"agent {pointer.agent_id}: cannot publish with epoch {lease_epoch}, because the pointer has epoch"
            f" {pointer.lease_epoch}; claim the agent first"
        )


def _refuse_stale(pointer: Pointer, lease_epoch: int) -> None:
    if pointer.lease_epoch > lease_epoch:
        raise FailedPrecondition(
            f"agent {pointer.agent_id} was assigned again: epoch {lease_epoch} is stale, epoch {pointer.lease_epoch}"
            " holds it; stop",
            reason=STALE_EPOCH,
        )


def _read(store: CheckpointStore, agent_id: str) -> Found:
    return store.read_pointer(agent_id) or (Pointer(agent_id=agent_id), None)


def _swap(store: CheckpointStore, agent_id: str, found: Found, decide: Callable[[Pointer], Pointer]) -> Pointer:
    # The loop ends: a swap fails only if another one succeeded, and a higher epoch makes `decide` raise.
    while True:
        pointer, etag = found
        wanted = decide(pointer)
        if etag is not None and wanted == pointer:
            return pointer  # an earlier attempt succeeded, but its reply was lost
        try:
            store.swap_pointer(agent_id, wanted, etag)
        except Aborted:
            found = _read(store, agent_id)
            continue
        return wanted
