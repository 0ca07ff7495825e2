"""Decides whether a pod may replace the pointer of an agent. Pure.

A pod changes a pointer in two ways only: it claims the agent for the epoch of its lease, or it publishes a manifest
under that epoch. Everything else is refused, so a pod cannot move the pointer back, or claim for another pod.
"""

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.publish import advanced, claimed
from podrace.errors import InvalidArgument


def check_change(present: Pointer, wanted: Pointer, lease_epoch: int) -> None:
    """Checks that a new pointer is a claim or a publication of a lease epoch.

    Args:
        present: The pointer as it is; with no epoch and no manifest if there is none.
        wanted: The new pointer.
        lease_epoch: Epoch of the assignment.

    Raises:
        FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH), or the agent was not claimed for this one.
        InvalidArgument: The new pointer is neither of the two.
    """
    allowed = claimed(present, lease_epoch)
    if wanted.manifest_digest != present.manifest_digest:
        allowed = advanced(present, lease_epoch, wanted.manifest_digest)
    if wanted != allowed:
        raise InvalidArgument(
            f"agent {present.agent_id}: a pod with epoch {lease_epoch} may claim the agent or publish a manifest; this"
            " pointer is neither"
        )


def check_manifest(manifest: Manifest, manifest_digest: str, *, tournament_id: str, pointer: Pointer) -> None:
    """Checks that a manifest is one that its pod may publish.

    Args:
        manifest: The manifest.
        manifest_digest: Its digest.
        tournament_id: Tournament of the agent.
        pointer: The new pointer.

    Raises:
        InvalidArgument: It belongs to another tournament, agent or epoch, or is that of a snapshot.
    """
    stated = manifest.tournament_id, manifest.agent_id, manifest.lease_epoch, manifest.snapshot
    if stated != (tournament_id, pointer.agent_id, pointer.lease_epoch, False):
        raise InvalidArgument(
            f"manifest {manifest_digest}: is not a checkpoint of agent {pointer.agent_id} of tournament {tournament_id}"
            f" under epoch {pointer.lease_epoch}"
        )
