"""Computes the digests that name checkpoint parts and policies."""

import hashlib


def digest(data: bytes) -> str:
    """Returns the SHA-256 of some bytes, lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()
