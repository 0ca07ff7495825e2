"""Keeps copies of a service's database in the checkpoint store, and restores them. Works without torch."""
