"""Derives seeds from the seed of a tournament, a purpose and a number.

Seeds of different purposes or numbers are unrelated, so episodes that choose something and episodes that report its
score never share a seed.
"""

import json
from hashlib import sha256


def purpose_seed(seed: int, purpose: str, number: int) -> int:
    """Returns a seed: the first 63 bits of SHA-256 of `seed/purpose/number`, so that it fits a signed integer."""
    return int.from_bytes(purpose_digest(seed, purpose, number)[:8]) >> 1


def purpose_digest(seed: int, purpose: str, number: int) -> bytes:
    """Returns the SHA-256 of `seed/purpose/number`."""
    return sha256(f"{seed}/{purpose}/{number}".encode()).digest()


def derive_seed(seed: int, *path: str | int) -> int:
    """Derives the seed of a named random stream.

    The rule, for implementations in any language: encode the JSON array `[seed, path...]` in ASCII without spaces,
    compute its SHA-256, read the first 8 bytes as a big-endian unsigned integer, and drop the lowest bit.

    Args:
        seed: The agent's seed.
        *path: Purpose and counters, for example `"act", worker, rollout_number`.

    Returns:
        A seed in [0, 2^63).
    """
    name = json.dumps([seed, *path], ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(sha256(name.encode("ascii")).digest()[:8], "big") >> 1
