"""Reads tournament specifications: TOML to message, defaults filled in, every value checked."""
