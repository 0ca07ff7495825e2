"""Deletes objects of a store that nothing refers to. Called only by the leaderboard.

Kept are the roots that the caller names (board, pins, parents of unfinished agents) with their parts, and for each
pointer its manifest and the previous manifest, both with their parts. The predecessor of the previous manifest is not
kept; otherwise the chain of manifests would keep every object. All other objects that are older than the grace age are
deleted. The grace age must exceed the duration of the longest publication, because nothing refers to its objects until
its last step.

Parts of replay memories are optional, so the caller may name some that are not kept although a manifest lists them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DataLoss, NotFound


def collect(store: CheckpointStore, roots: Iterable[str], grace_seconds: float) -> list[str]:
    """Deletes unreachable objects and returns their digests.

    Args:
        store: The store.
        roots: Digests of manifests to keep with their parts.
        grace_seconds: Younger objects are kept, whether reachable or not.

    Raises:
        DataLoss: The manifest of a root or a pointer is damaged, so that its parts are unknown; nothing was deleted.
        NotFound: The manifest of a root or a pointer is not in the store; nothing was deleted.
    """
    found = survey(store, roots, grace_seconds)
    if found.missing:
        raise NotFound(f"manifest {min(found.missing)} is not in {store.uri}; nothing was deleted")
    return delete(store, found, grace_seconds)


@dataclass(frozen=True)
class Survey:
    """The unreachable objects of a store, and the roots that are missing from it."""

    garbage: Sequence[str]
    """Digests of the unreachable objects that are older than the grace age."""
    missing: frozenset[str]
    """Roots that are not in the store. Their parts are unknown and can no longer be read."""


def survey(
    store: CheckpointStore, roots: Iterable[str], grace_seconds: float, *, dropped: Collection[str] = ()
) -> Survey:
    """Finds what `collect` would delete, without deleting it. A missing root is reported and keeps nothing.

    Args:
        store: The store.
        roots: Digests of manifests to keep with their parts.
        grace_seconds: Younger objects are kept.
        dropped: Digests of optional parts that are not kept.

    Raises:
        DataLoss: The manifest of a root or a pointer is damaged, so that its parts are unknown.
        NotFound: The manifest of a pointer is not in the store.
    """
    # Listed before the pointers are read, so that the list has no objects of publications that finish in between.
    old = [stored.digest for stored in store.list_objects() if stored.age_seconds >= grace_seconds]
    kept: set[str] = set()
    missing: set[str] = set()
    for root in roots:
        try:
            kept |= _objects(root, read_manifest(store, root))
        except NotFound:
            missing.add(root)
    kept |= reachable(store, ())
    kept -= set(dropped)
    return Survey([name for name in old if name not in kept], frozenset(missing))


def delete(store: CheckpointStore, found: Survey, grace_seconds: float) -> list[str]:
    """Deletes the garbage of a survey, except objects that were put again since; returns the digests deleted."""
    return [name for name in found.garbage if store.delete_object(name, grace_seconds)]


def reachable(store: CheckpointStore, roots: Iterable[str]) -> set[str]:
    """Returns the digests of all manifests and parts to keep; raises as `collect` does."""
    kept: set[str] = set()
    for root in roots:
        kept |= _objects(root, read_manifest(store, root))
    for pointer in store.list_pointers():
        if pointer.manifest_digest:
            kept |= _objects(pointer.manifest_digest, read_manifest(store, pointer.manifest_digest))
            kept |= _predecessor(store, pointer.previous_manifest_digest)
    return kept


def _predecessor(store: CheckpointStore, manifest_digest: str) -> set[str]:
    # A previous manifest that cannot be read is of no use to a reader either.
    try:
        return _objects(manifest_digest, read_manifest(store, manifest_digest)) if manifest_digest else set()
    except (DataLoss, NotFound):
        return set()


def _objects(manifest_digest: str, manifest: Manifest) -> set[str]:
    return {manifest_digest, *(part.digest for part in manifest.parts)}
