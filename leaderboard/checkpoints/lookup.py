"""Finds the manifest of a checkpoint that a tournament may read."""

from collections.abc import Sequence
from dataclasses import dataclass

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.manifest import LARGEST_MANIFEST_BYTES, manifest_from_bytes
from podrace.checkpoint_store.store import SHARED, CheckpointStore, check_digest
from podrace.errors import NamedResource, NotFound


@dataclass(frozen=True)
class StoredManifest:
    """A manifest, and where it is."""

    folder: str
    """Tournament in whose folder it and its parts are; SHARED: the shared folder."""
    manifest: Manifest
    size_bytes: int


def find_manifest(store: CheckpointStore, readable: Sequence[str], manifest_digest: str) -> StoredManifest:
    """Returns a manifest of one of the tournaments in `readable`. Blocks.

    A manifest is in the folder of its tournament. In the shared folder, where those of podrace 0.1.0 are, it states its
    tournament itself: only the leaderboard and released pods have written there.

    Raises:
        InvalidArgument: The digest is malformed.
        NotFound: None of them has this manifest.
        DataLoss: It is damaged (BAD_DIGEST).
        ResourceExhausted: It is larger than any manifest.
    """
    check_digest(manifest_digest)
    for folder in (*readable, SHARED):
        own = store.within(folder)
        if not own.has_object(manifest_digest):
            continue
        data = own.get_object(manifest_digest, LARGEST_MANIFEST_BYTES)
        manifest = manifest_from_bytes(data)
        if manifest.tournament_id in readable:
            return StoredManifest(folder, manifest, len(data))
    named = NamedResource("checkpoint", manifest_digest)
    raise NotFound(f"manifest {manifest_digest} is not in {store.uri}", resource=named)
