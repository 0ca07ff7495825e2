"""Derives seeds from the seed of a tournament, a purpose and a number.

Seeds of different purposes or numbers are unrelated, so episodes that choose something and episodes that report its
score never share a seed.
"""

from hashlib import sha256


def purpose_seed(seed: int, purpose: str, number: int) -> int:
    """Returns a seed: the first 63 bits of SHA-256 of `seed/purpose/number`, so that it fits a signed integer."""
    return int.from_bytes(purpose_digest(seed, purpose, number)[:8]) >> 1


def purpose_digest(seed: int, purpose: str, number: int) -> bytes:
    """Returns the SHA-256 of `seed/purpose/number`."""
    return sha256(f"{seed}/{purpose}/{number}".encode()).digest()
