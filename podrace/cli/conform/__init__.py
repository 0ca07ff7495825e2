"""Implements `podrace conform`."""
