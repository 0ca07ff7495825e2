"""Ties processes to each other: lifelines, proof of identity, and cleanup of process groups."""
