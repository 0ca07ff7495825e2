"""Reads whether the database was restored from a backup."""

from orchestrator.state.database import Transaction


def restored_epoch(transaction: Transaction) -> int:
    """Returns the epoch of backups with which the database was restored last; 0: it never was."""
    return int(transaction.execute("SELECT restored_epoch FROM identity")[0][0])
