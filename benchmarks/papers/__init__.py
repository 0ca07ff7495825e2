"""Provides the parts of `paper.py`: its cases, and the runs of the peers."""
