"""Owns who may publish and how readers verify; knows no particular store.

The life of an agent in a pod:

    pointer = claim(store, agent_id, lease_epoch)            # whoever held a lower epoch can no longer publish
    latest = fetch_latest(store, agent_id)                   # or fetch(store, assignment.checkpoint.manifest_digest)
    while training:
        manifest_digest = publish(store, agent_id, lease_epoch, {"policy": ..., "learner": ...}, manifest)

Only the epoch in the pointer decides who may publish; no clock is read here. Every step may be repeated after a lost
reply, and a process may die between any two of them: objects without a pointer are garbage, never damage.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part, Pointer
from podrace.checkpoint_store.manifest import FORMAT_VERSION, manifest_bytes, manifest_from_bytes
from podrace.checkpoint_store.store import BAD_DIGEST as BAD_DIGEST
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import Aborted, DataLoss, FailedPrecondition, NotFound

STALE_EPOCH = "ERROR_REASON_STALE_EPOCH"
AT_ONCE_BYTES = 4 * 2**20
"""Files that are smaller together are stored one after the other: threads would cost more than they save."""
Found = tuple[Pointer, str | None]
"""An agent's pointer and the tag that stands for its content; None: there is none yet."""


@dataclass(frozen=True)
class LatestCheckpoint:
    """The newest checkpoint of an agent that could be verified."""

    manifest_digest: str
    """Digest of its manifest."""
    manifest: Manifest
    """Its manifest."""
    parts: dict[str, bytes]
    """Its training files by name."""
    damage: str
    """What is wrong with the newest one where this is its predecessor; empty otherwise."""


def claim(store: CheckpointStore, agent_id: str, lease_epoch: int) -> Pointer:
    """Makes a lease epoch the only one that may publish for an agent; the manifest stays.

    Returns:
        The agent's pointer, whose manifest (if any) is to be submitted again: a score could have been lost between
        its publication and its submission.

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
        store: Where to.
        agent_id: The agent, claimed for this epoch.
        lease_epoch: Epoch of the assignment.
        parts: Training files by name.
        manifest: All but format version, agent, epoch and parts, which are filled in here. The caller sets
            `previous_manifest_digest` (what this training went on from) and `publish_time`.
        stored: Further parts, which `store_part` has put there already: too large to hold all of them at once.

    Returns:
        The digest of the manifest.

    Raises:
        FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH), or it was not claimed for this one.
        ResourceExhausted: The store is full; what was published before stays.
    """
    found = _read(store, agent_id)
    _refuse_unclaimed(found[0], lease_epoch)  # before anything is stored
    complete = _complete(manifest, agent_id, lease_epoch, [*_store_parts(store, parts), *stored])
    # Only now: a manifest never lacks a part, even one that nothing points to.
    manifest_digest = store.put_object(manifest_bytes(complete))
    _swap(store, agent_id, found, lambda pointer: advanced(pointer, lease_epoch, manifest_digest))
    return manifest_digest


def store_part(store: CheckpointStore, name: str, data: bytes) -> Part:
    """Stores one part ahead of the manifest that will list it; raises ResourceExhausted where the store is full."""
    return Part(name=name, digest=store.put_object(data), size_bytes=len(data))


def _store_parts(store: CheckpointStore, parts: Mapping[str, bytes]) -> list[Part]:
    threads = min(store.concurrency, len(parts))
    if threads < 2 or sum(map(len, parts.values())) < AT_ONCE_BYTES:
        return [store_part(store, name, data) for name, data in parts.items()]
    # Threads of their own each time: a process that forks later takes none of them along.
    with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint") as pool:
        return list(pool.map(lambda name: store_part(store, name, parts[name]), parts))


def claimed(pointer: Pointer, lease_epoch: int) -> Pointer:
    """Decides what an agent's pointer becomes when an epoch claims it; raises as claim does."""
    _refuse_stale(pointer, lease_epoch)
    claimed_pointer = Pointer()
    claimed_pointer.CopyFrom(pointer)
    claimed_pointer.lease_epoch = lease_epoch
    return claimed_pointer


def advanced(pointer: Pointer, lease_epoch: int, manifest_digest: str) -> Pointer:
    """Decides what an agent's pointer becomes when an epoch publishes; raises as publish does."""
    _refuse_unclaimed(pointer, lease_epoch)
    # A repeated publication finds its manifest there already and must not become its own predecessor.
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
        DataLoss: It is damaged (BAD_DIGEST).
        NotFound: It is not in the store.
        Unimplemented: It has a later format than this build reads.
    """
    return manifest_from_bytes(store.get_object(manifest_digest))


def read_part(store: CheckpointStore, part: Part) -> bytes:
    """Returns the verified bytes of a part; raises DataLoss (BAD_DIGEST) and NotFound."""
    data = store.get_object(part.digest)
    if len(data) != part.size_bytes:
        raise DataLoss(
            f"part {part.name!r} ({part.digest} in {store.uri}) has {len(data)} bytes, its manifest states"
            f" {part.size_bytes}",
            reason=BAD_DIGEST,
        )
    return data


def fetch(
    store: CheckpointStore, manifest_digest: str, *, without: str | None = None
) -> tuple[Manifest, dict[str, bytes]]:
    """Returns a checkpoint's manifest and its training files by name, all verified.

    Args:
        store: Where from.
        manifest_digest: Of the manifest.
        without: Parts whose names begin with this are left to `read_part`.

    Raises:
        DataLoss: An object is damaged or of another size than the manifest states (BAD_DIGEST); it is named.
        NotFound: An object is not in the store; it is named.
        Unimplemented: The manifest has a later format than this build reads.
    """
    manifest = read_manifest(store, manifest_digest)
    wanted = [part for part in manifest.parts if without is None or not part.name.startswith(without)]
    return manifest, {part.name: read_part(store, part) for part in wanted}


def fetch_latest(store: CheckpointStore, agent_id: str, *, without: str | None = None) -> LatestCheckpoint | None:
    """Returns the agent's newest checkpoint, or its predecessor where any of the newest is damaged or missing.

    Args:
        store: Where from.
        agent_id: Whose.
        without: As for `fetch`.

    Returns:
        None if nothing was ever published for the agent.

    Raises:
        DataLoss: Neither can be read; the object is named.
        NotFound: An object of the predecessor is not in the store.
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
        raise DataLoss(f"agent {agent_id} has no earlier checkpoint to fall back to: {damage}", reason=BAD_DIGEST)
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
            f"agent {pointer.agent_id}: epoch {lease_epoch} publishes while the pointer is of {pointer.lease_epoch};"
            " claim the agent first"
        )


def _refuse_stale(pointer: Pointer, lease_epoch: int) -> None:
    if pointer.lease_epoch > lease_epoch:
        raise FailedPrecondition(
            f"agent {pointer.agent_id} was handed out again: epoch {lease_epoch} is stale, {pointer.lease_epoch} holds"
            " it; stop",
            reason=STALE_EPOCH,
        )


def _read(store: CheckpointStore, agent_id: str) -> Found:
    return store.read_pointer(agent_id) or (Pointer(agent_id=agent_id), None)


def _swap(store: CheckpointStore, agent_id: str, found: Found, decide: Callable[[Pointer], Pointer]) -> Pointer:
    # Ends: a swap fails only when another one succeeded, and a higher epoch makes `decide` raise.
    while True:
        pointer, etag = found
        wanted = decide(pointer)
        if etag is not None and wanted == pointer:
            return pointer  # done already: the reply of an earlier try was lost
        try:
            store.swap_pointer(agent_id, wanted, etag)
        except Aborted:
            found = _read(store, agent_id)
            continue
        return wanted
