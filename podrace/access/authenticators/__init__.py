"""The ways in which a caller can be identified, one module each."""
