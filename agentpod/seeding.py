"""Derives every random stream of a pod from one seed and a path of purposes and counters.

No generator state is stored. A stream is named by its purpose and by how often it was used, so a checkpoint needs only
the seed and the counters for an exact resume, and no two streams overlap.
"""

import hashlib
import json

import torch


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
    return int.from_bytes(hashlib.sha256(name.encode("ascii")).digest()[:8], "big") >> 1


def derive_generator(device: torch.device | str, seed: int, *path: str | int) -> torch.Generator:
    """Returns a generator on `device` at the start of the stream that `derive_seed(seed, *path)` names."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *path))
