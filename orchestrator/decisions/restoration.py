"""Decides which leases a database restored from a backup adopts from pods that are ahead of it. Pure functions.

Rules:
- After each restoration, lease epochs continue at a higher multiple of EPOCHS. Work that is assigned again thus never
  gets an epoch that was granted after the backup.
- A pod that reports a higher epoch than the database knows, and one from before the restoration, got its lease after
  the backup. It keeps the work, unless the work was assigned again since the restoration.
"""

EPOCHS = 1 << 20
"""Lease epochs between two restorations: more than an agent or an evaluation is ever assigned."""


def next_epoch(lease_epoch: int, restored_epoch: int) -> int:
    """Returns the lease epoch of work that is assigned again.

    Args:
        lease_epoch: Its present epoch; 0: it was not assigned yet.
        restored_epoch: Epoch of backups that restored the database last, which grows with each restoration; 0: it was
            never restored.
    """
    return max(lease_epoch, restored_epoch * EPOCHS) + 1


def attempts(lease_epoch: int) -> int:
    """Returns how often work was assigned, since the last restoration if there was one."""
    return lease_epoch % EPOCHS


def keeps_lease(known_epoch: int, reported_epoch: int, restored_epoch: int) -> bool:
    """Returns whether a pod holds a lease that was granted between the backup and the restoration.

    Args:
        known_epoch: Lease epoch of the work in the database; 0: the work is not in it.
        reported_epoch: The one that the pod reports.
        restored_epoch: As in `next_epoch`.
    """
    return known_epoch < reported_epoch <= restored_epoch * EPOCHS
