"""The pods of all tournaments: the reconcile loop, pod records, and metrics."""
