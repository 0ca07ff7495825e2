"""Derives seeds from the seed of a tournament, a purpose and a number."""

from hashlib import sha256


def purpose_seed(seed: int, purpose: str, number: int) -> int:
    """A seed: the first 63 bits of SHA-256 of `seed/purpose/number`, so that it fits a signed integer."""
    return int.from_bytes(seed_digest(seed, purpose, number)[:8]) >> 1


def seed_digest(seed: int, purpose: str, number: int) -> bytes:
    """SHA-256 of `seed/purpose/number`."""
    return sha256(f"{seed}/{purpose}/{number}".encode()).digest()
