"""Derives every random stream of a pod from one seed and a path of purposes and counters.

No generator state is stored. A stream is named by its purpose and by how often it was used, so a checkpoint needs only
the seed and the counters for an exact resume, and no two streams overlap.
"""

import torch

from podrace.seeding import derive_seed as derive_seed


def derive_generator(device: torch.device | str, seed: int, *path: str | int) -> torch.Generator:
    """Returns a generator on `device` at the start of the stream that `derive_seed(seed, *path)` names."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *path))
