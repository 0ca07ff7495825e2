"""The training pool: the reconcile loop, pod records, and metrics."""
