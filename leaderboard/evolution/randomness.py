"""Owns where randomness comes from: the tournament's seed, a purpose, and an agent's number; nothing else.

Only Random.random() is drawn from, because it alone is documented to give the same sequence in every version of Python.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from leaderboard.seeding import purpose_seed, seed_digest

Item = TypeVar("Item")


def stream(seed: int, purpose: str, number: int) -> Random:
    """The random numbers for one purpose of one agent: Random seeded with the SHA-256 of `seed/purpose/number`."""
    return Random(int.from_bytes(seed_digest(seed, purpose, number)))


def agent_seed(seed: int, number: int) -> int:
    """The seed of an agent."""
    return purpose_seed(seed, "agent", number)


def happens(random: Random, probability: float) -> bool:
    """True with this probability."""
    return random.random() < probability


def draw_one(random: Random, items: Sequence[Item]) -> Item:
    """One of the items, each equally likely."""
    return items[int(random.random() * len(items))]


def draw_distinct(random: Random, items: Sequence[Item], count: int) -> list[Item]:
    """`count` different items, or all if there are fewer, in random order (the first steps of Fisher and Yates)."""
    shuffled = list(items)
    drawn = min(count, len(shuffled))
    for position in range(drawn):
        other = position + int(random.random() * (len(shuffled) - position))
        shuffled[position], shuffled[other] = shuffled[other], shuffled[position]
    return shuffled[:drawn]
