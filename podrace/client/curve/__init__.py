"""Reads learning curves: the snapshots of a tournament, evaluated by its pods."""
