"""Delivers checkpoints to programs that have no access to the checkpoint store (CheckpointService)."""
