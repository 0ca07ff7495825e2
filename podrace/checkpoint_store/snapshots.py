"""Stores snapshots: manifests whose only part is a policy.

No pointer refers to a snapshot. The leaderboard receives its digest and keeps it from being collected. A snapshot of a
published checkpoint needs only a small manifest, because its policy is already in the store.
"""

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.manifest import FORMAT_VERSION, manifest_bytes
from podrace.checkpoint_store.store import CheckpointStore
from podrace.digests import digest
from podrace.errors import InvalidArgument

POLICY_PART = "policy"


def store_snapshot(store: CheckpointStore, policy: bytes, manifest: Manifest) -> str:
    """Stores a policy, then the manifest of its snapshot; equal arguments may be repeated.

    Args:
        store: The store.
        policy: Content of the policy part, as in a checkpoint.
        manifest: The manifest without format version and parts, which are filled in here.

    Returns:
        The digest of the manifest.

    Raises:
        ResourceExhausted: The store is full.
    """
    part = Part(name=POLICY_PART, digest=digest(policy), size_bytes=len(policy))
    complete = manifest_bytes(_complete(manifest, part))
    manifest_digest = digest(complete)
    store.announce({part.digest: part.size_bytes, manifest_digest: len(complete)})
    store.put_object(policy, part.digest)
    return store.put_object(complete, manifest_digest)


def store_snapshot_of(store: CheckpointStore, checkpoint_digest: str, checkpoint: Manifest) -> str:
    """Stores the manifest of a snapshot of a published policy; the same checkpoint always gives the same digest.

    Raises:
        InvalidArgument: The checkpoint has no policy.
        ResourceExhausted: The store is full.
    """
    policies = [part for part in checkpoint.parts if part.name == POLICY_PART]
    if len(policies) != 1:
        raise InvalidArgument(f"checkpoint {checkpoint_digest} has no part {POLICY_PART!r}, which a snapshot needs")
    manifest = _complete(checkpoint, policies[0])
    manifest.previous_manifest_digest = checkpoint_digest
    return store.put_object(manifest_bytes(manifest))


def is_snapshot(manifest: Manifest) -> bool:
    """Whether a manifest is that of a snapshot."""
    return manifest.snapshot and [part.name for part in manifest.parts] == [POLICY_PART]


def _complete(manifest: Manifest, policy: Part) -> Manifest:
    complete = Manifest()
    complete.CopyFrom(manifest)
    complete.format_version = FORMAT_VERSION
    complete.snapshot = True
    # The score belongs to the candidate on a board; a snapshot is evaluated again.
    complete.ClearField("evaluation")
    for description in complete.policies.values():
        description.ClearField("test_vectors_part")
    del complete.parts[:]
    complete.parts.append(policy)
    return complete
