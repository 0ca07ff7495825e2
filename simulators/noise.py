"""Randomness that is a function of what it is for: first states depend on the seed, the lane and the episode alone."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Numbers = NDArray[np.float64]

STRIDE = np.uint64(0x9E3779B97F4A7C15)


class EpisodeNoise:
    """Numbers for (seed, lane, episode), drawn for any lanes at once, in any order.

    A lane's numbers are the same however many lanes there are and whenever the others' episodes end. They are the
    SplitMix64 sequence (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators") from a state that
    hashes the three with the same function.
    """

    def __init__(self, seed: int) -> None:
        # Of any size, where a word has 64 bits.
        self._root = np.random.SeedSequence(seed).generate_state(1, np.uint64).astype(np.uint64)

    def uniform(self, lanes: NDArray[np.integer[Any]], episodes: NDArray[np.integer[Any]], size: int) -> Numbers:
        """Uniform in [0, 1).

        Args:
            lanes: [K], below 2^32.
            episodes: [K], counted from 0, below 2^32.
            size: Numbers for each; the first ones are the same whatever the size.

        Returns:
            [K, size].
        """
        which = (lanes.astype(np.uint64) << np.uint64(32)) + episodes.astype(np.uint64)
        state = mixed(self._root + STRIDE * which)
        words = mixed(state[:, None] + STRIDE * np.arange(1, size + 1, dtype=np.uint64))
        result: Numbers = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return result


def normal(uniform: Numbers) -> Numbers:
    """Standard normal numbers, [K, size] from uniform ones, [K, 2 size] (Box & Muller 1958)."""
    radius, angle = np.split(uniform, 2, axis=1)
    result: Numbers = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return result


def mixed(words: Words) -> Words:
    """The output function of SplitMix64: a bijection in which every bit depends on every other."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
