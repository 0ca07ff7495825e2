"""Detects roles that make no progress: what a role does, how long it may take, and the stacks of its threads."""
