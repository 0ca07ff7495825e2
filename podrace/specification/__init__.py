"""Reads tournament specifications from TOML, fills in defaults and checks every value."""
