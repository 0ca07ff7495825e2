"""Owns what garbage is; only the leaderboard collects it.

Kept are: the roots the caller names (board, pins, parents of unfinished agents) with their parts, and for each pointer
its manifest and that one's predecessor with their parts. A predecessor's own predecessor is not kept, or the chain of
manifests would keep everything alive. Whatever else is older than the grace age goes. The grace age must exceed the
longest publication, whose objects nobody points to until its last step.
"""

from collections.abc import Iterable

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoints.publish import read_manifest
from podrace.checkpoints.store import CheckpointStore
from podrace.errors import DataLoss, NotFound


def collect(store: CheckpointStore, roots: Iterable[str], grace_seconds: float) -> list[str]:
    """Deletes what nobody can reach any more and returns the digests of what was deleted.

    Args:
        store: Where to collect.
        roots: Digests of manifests to keep with their parts.
        grace_seconds: Younger objects stay, whether reachable or not.

    Raises:
        DataLoss: The manifest of a root or a pointer is damaged, so that its parts are unknown; nothing was deleted.
        NotFound: It is not in the store; nothing was deleted.
    """
    # Listed before the pointers are read: what a publication adds in between is not in the list.
    old = [stored.digest for stored in store.list_objects() if stored.age_seconds >= grace_seconds]
    kept = reachable(store, roots)
    return [name for name in old if name not in kept and store.delete_object(name, grace_seconds)]


def reachable(store: CheckpointStore, roots: Iterable[str]) -> set[str]:
    """Returns the digests of all manifests and parts to keep; raises as collect does."""
    kept: set[str] = set()
    for root in roots:
        kept |= _objects(root, read_manifest(store, root))
    for pointer in store.list_pointers():
        if pointer.manifest_digest:
            kept |= _objects(pointer.manifest_digest, read_manifest(store, pointer.manifest_digest))
            kept |= _predecessor(store, pointer.previous_manifest_digest)
    return kept


def _predecessor(store: CheckpointStore, manifest_digest: str) -> set[str]:
    # A predecessor that cannot be read is of no use to a reader either.
    try:
        return _objects(manifest_digest, read_manifest(store, manifest_digest)) if manifest_digest else set()
    except (DataLoss, NotFound):
        return set()


def _objects(manifest_digest: str, manifest: Manifest) -> set[str]:
    return {manifest_digest, *(part.digest for part in manifest.parts)}
