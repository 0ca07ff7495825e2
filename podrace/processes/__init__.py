"""Handles processes: lifelines, identity beyond the pid, and cleanup of process groups."""
