"""Tests which pieces of replay memories are deleted so that a tournament stays within its quota."""

import random

from leaderboard.ranking.replay_quota import beyond_quota
from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.replay_parts import STATE, piece_name, select


def memory(agent: str, first: int, end: int, size_bytes: int = 10) -> list[Part]:
    """Pieces `first` to before `end` of an agent, and the state, whose size is 1."""
    pieces = [Part(name=piece_name(k), digest=f"{agent}{k}", size_bytes=size_bytes) for k in range(first, end)]
    return [*pieces, Part(name=STATE, digest=f"{agent}-state-{end}", size_bytes=1)]


def digests(*memories: list[Part]) -> set[str]:
    return {part.digest for parts in memories for part in parts}


def kept_bytes(deleted: set[str], *memories: list[Part]) -> int:
    return sum(
        {part.digest: part.size_bytes for parts in memories for part in parts if part.digest not in deleted}.values()
    )


def test_nothing_is_deleted_within_the_quota_and_shared_pieces_count_once() -> None:
    early, late = memory("a", 0, 10), memory("a", 0, 12)
    assert beyond_quota([], [[early, late]], 12 * 10 + 2) == set()
    assert beyond_quota([], [[early, late]], 12 * 10 + 1) != set()


def test_the_last_tier_loses_its_memories_first() -> None:
    board, last, ended = memory("a", 0, 10), memory("b", 0, 10), memory("c", 0, 10)
    assert beyond_quota([], [[board], [last], [ended]], 101 + 101) == digests(ended)
    deleted = beyond_quota([], [[board], [last], [ended]], 101 + 51)
    assert digests(ended) <= deleted <= digests(last, ended)
    assert kept_bytes(deleted, board, last, ended) == 101 + 51


def test_all_memories_of_a_tier_are_reduced_to_the_same_size() -> None:
    memories = [memory(f"{agent}-", 0, 20) for agent in range(5)]
    deleted = beyond_quota([], [memories], 5 * 101)
    for parts in memories:
        assert [part for part in parts if part.digest not in deleted] == select(parts, 101)


def test_a_piece_that_another_memory_keeps_is_not_deleted() -> None:
    parent, child = memory("a", 0, 20), [*memory("a", 10, 20)[:-1], *memory("b", 20, 30)]
    deleted = beyond_quota([child], [[parent]], 250)
    assert not deleted & digests(child)
    assert kept_bytes(deleted, parent, child) <= 250


def test_protected_memories_are_kept_even_above_the_quota() -> None:
    running, board = memory("a", 0, 10), memory("b", 0, 10)
    assert beyond_quota([running], [[board]], 50) == digests(board)
    assert beyond_quota([running], [], 50) == set()


def test_the_quota_is_never_exceeded_and_almost_used() -> None:
    generator = random.Random(0)
    for _ in range(100):
        tiers = [[memory(f"{tier}-{k}-", 0, generator.randrange(1, 30)) for k in range(4)] for tier in range(2)]
        every = [parts for tier in tiers for parts in tier]
        total = kept_bytes(set(), *every)
        quota_bytes = generator.randrange(total)
        kept = kept_bytes(beyond_quota([], tiers, quota_bytes), *every)
        # A memory grows by two pieces at most when the common size grows by one piece.
        assert quota_bytes - 8 * 21 <= kept <= quota_bytes
