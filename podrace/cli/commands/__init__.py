"""Implements the commands of `podrace`, one module per group of related commands."""
