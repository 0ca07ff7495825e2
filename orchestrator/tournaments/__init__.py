"""The lifecycle of tournaments: creation, changes, completion, champion selection, snapshots."""
