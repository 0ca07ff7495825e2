"""Draws random numbers that depend only on their purpose: first states are a function of seed, lane and episode."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Numbers = NDArray[np.float64]

STRIDE = np.uint64(0x9E3779B97F4A7C15)


class EpisodeNoise:
    """Random numbers for (seed, lane, episode), drawn for any lanes at once and in any order.

    A lane's numbers do not depend on how many lanes there are or on when other episodes end. They are the SplitMix64
    sequence (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"), started from a hash of the
    three by the same function.
    """

    def __init__(self, seed: int) -> None:
        # A seed may be of any size; a word has 64 bits.
        self._root = np.random.SeedSequence(seed).generate_state(1, np.uint64).astype(np.uint64)

    def uniform(self, lanes: NDArray[np.integer[Any]], episodes: NDArray[np.integer[Any]], size: int) -> Numbers:
        """Draws numbers uniform in [0, 1).

        Args:
            lanes: [K], below 2^32.
            episodes: [K], counted from 0, below 2^32.
            size: Numbers per (lane, episode); a smaller size gives a prefix of a larger one.

        Returns:
            [K, size].
        """
        which = (lanes.astype(np.uint64) << np.uint64(32)) + episodes.astype(np.uint64)
        state = mixed(self._root + STRIDE * which)
        words = mixed(state[:, None] + STRIDE * np.arange(1, size + 1, dtype=np.uint64))
        result: Numbers = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return result


def normal(uniform: Numbers) -> Numbers:
    """Turns uniform numbers [K, 2 size] into standard normal ones, [K, size] (Box & Muller 1958)."""
    radius, angle = np.split(uniform, 2, axis=1)
    result: Numbers = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return result


def mixed(words: Words) -> Words:
    """Applies the output function of SplitMix64: a bijection in which every bit depends on every other."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
