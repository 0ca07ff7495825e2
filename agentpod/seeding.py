"""Owns how every stream of random numbers of a pod is derived from one seed and counters.

Nothing keeps the state of a generator: a stream is named by what it is for and counted by what it has done. A seed and
counters are therefore all that a checkpoint must hold for an exact resume, and no two streams overlap.
"""

import hashlib
import json

import torch


def derive_seed(seed: int, *path: str | int) -> int:
    """Names a stream of random numbers.

    The rule, for any language to follow: write the JSON array `[seed, path...]` in ASCII without spaces, take its
    SHA-256, read the first 8 bytes as a big-endian unsigned integer, and drop the lowest bit.

    Args:
        seed: The seed of the agent.
        *path: Purpose and counters, for example `"act", worker, rollout_number`.

    Returns:
        A seed in [0, 2^63).
    """
    name = json.dumps([seed, *path], ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(name.encode("ascii")).digest()[:8], "big") >> 1


def derive_generator(device: torch.device | str, seed: int, *path: str | int) -> torch.Generator:
    """A generator on `device`, at the start of the stream that `derive_seed(seed, *path)` names."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *path))
