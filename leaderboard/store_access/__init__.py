"""Gives pods access to the checkpoint store: swaps pointers for them, and signs URLs for single objects."""
