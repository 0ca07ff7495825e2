"""Derives seeds and random streams from the seed of the tournament, a purpose and the number of an agent.

Only Random.random() is used: it is the only method that is documented to give the same sequence in every version of
Python.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from podrace.seeding import purpose_digest, purpose_seed

Item = TypeVar("Item")


def stream(seed: int, purpose: str, number: int) -> Random:
    """Returns the random stream of one agent for one purpose: Random seeded with SHA-256 of `seed/purpose/number`."""
    return Random(int.from_bytes(purpose_digest(seed, purpose, number)))


def agent_seed(seed: int, number: int) -> int:
    """Returns the seed of an agent."""
    return purpose_seed(seed, "agent", number)


def happens(random: Random, probability: float) -> bool:
    """Returns True with this probability."""
    return random.random() < probability


def draw_one(random: Random, items: Sequence[Item]) -> Item:
    """Returns one of the items, each with equal probability."""
    return items[int(random.random() * len(items))]


def draw_distinct(random: Random, items: Sequence[Item], count: int) -> list[Item]:
    """Returns `count` different items, or all if there are fewer, in random order (Fisher-Yates shuffle)."""
    shuffled = list(items)
    drawn = min(count, len(shuffled))
    for position in range(drawn):
        other = position + int(random.random() * (len(shuffled) - position))
        shuffled[position], shuffled[other] = shuffled[other], shuffled[position]
    return shuffled[:drawn]
