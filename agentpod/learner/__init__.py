"""Acquires assignments, trains agents and publishes their checkpoints: the leader of a pod and its followers."""
