"""Decides which pieces of the replay memories of a tournament are kept within its quota.

Checkpoints of one lineage share most pieces, and a shared piece counts once. The memories are divided into tiers. All
memories of a tier are reduced to samples of equal size (podrace.checkpoint_store.replay_parts), the largest with which
the tier and those before it fit. Every candidate of the first tier therefore keeps a memory, unless the quota
is smaller than the smallest samples of all of them.
"""

from collections.abc import Iterable, Sequence

from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.replay_parts import select

Memory = Sequence[Part]
"""The parts of one replay memory."""
HALVINGS = 16
"""Number of times that the range of sample sizes is halved: the size is found to 1 / 65,536 of the largest memory."""


def beyond_quota(protected: Iterable[Memory], tiers: Sequence[Sequence[Memory]], quota_bytes: int) -> set[str]:
    """Returns the digests of the parts to delete so that the others have at most `quota_bytes`.

    Args:
        protected: Memories of which nothing is deleted, even if they alone exceed the quota.
        tiers: The other memories, the most important tier first.
        quota_bytes: Most bytes of all parts together.
    """
    kept = _sizes(protected)
    every = kept | _sizes(memory for tier in tiers for memory in tier)
    if sum(every.values()) <= quota_bytes:
        return set()
    for tier in tiers:
        kept |= _largest_samples(tier, kept, quota_bytes)
    return every.keys() - kept.keys()


def _largest_samples(tier: Sequence[Memory], kept: dict[str, int], quota_bytes: int) -> dict[str, int]:
    """Returns the sizes of the parts that a tier keeps, by digest."""
    smallest, largest = 0, max((sum(part.size_bytes for part in memory) for memory in tier), default=0)
    best = _samples(tier, largest)
    if _total(kept | best) <= quota_bytes:
        return best
    best = {}
    for _ in range(HALVINGS):
        middle = (smallest + largest) // 2
        found = _samples(tier, middle)
        if _total(kept | found) <= quota_bytes:
            smallest, best = middle, found
        else:
            largest = middle
    return best


def _samples(tier: Sequence[Memory], limit_bytes: int) -> dict[str, int]:
    return _sizes(select(memory, limit_bytes) for memory in tier)


def _sizes(memories: Iterable[Memory]) -> dict[str, int]:
    return {part.digest: part.size_bytes for memory in memories for part in memory}


def _total(sizes: dict[str, int]) -> int:
    return sum(sizes.values())
